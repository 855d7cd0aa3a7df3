"""The model in the engine: loaded, its points found by probes, with a gate on every layer."""
