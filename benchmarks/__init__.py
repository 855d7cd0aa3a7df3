"""Djinn's speed against other tools: each benchmark runs both sides in turn and writes benchmarks/results/NAME.json."""
