"""Djinn's speed against other tools: each benchmark runs both sides in turn and writes results/benchmarks/NAME.json."""
