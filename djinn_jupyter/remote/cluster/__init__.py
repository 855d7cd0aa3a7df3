"""Engines on the machines of a Ray cluster: placed there, found by model, released. The only folder that imports
Ray."""
