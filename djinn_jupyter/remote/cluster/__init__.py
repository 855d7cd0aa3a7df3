"""Engines on the machines of a Ray cluster: placed there, found by model, let go. The only folder that imports Ray."""
