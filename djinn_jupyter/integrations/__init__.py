"""Code of other tools on a Djinn engine. Each is imported on demand, and needs its tool installed."""
