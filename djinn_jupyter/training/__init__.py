"""Modules trained on collected activations, in a process of its own that ends with the training. Knows no engine."""
