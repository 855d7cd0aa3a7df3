"""The model in the engine: loaded, studied by probes, with a gate on every layer."""
