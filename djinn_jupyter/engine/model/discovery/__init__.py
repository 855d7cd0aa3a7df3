"""The structure of a model, found by probing it: its layers, its points, its modules. Never from a table of names."""
