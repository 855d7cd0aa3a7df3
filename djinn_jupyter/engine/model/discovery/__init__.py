"""What a model is made of, found by probing it: its layers, its points, its modules. Never from a table of names."""
