"""How fast Djinn is, against what: each benchmark runs both sides in turn and writes benchmarks/results/NAME.json."""
