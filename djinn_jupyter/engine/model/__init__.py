"""The model as the engine knows it: loaded, studied by probes, with a gate on every layer."""
