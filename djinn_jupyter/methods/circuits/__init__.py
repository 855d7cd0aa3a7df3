"""Circuits: scores of edges, and runs in which the edges outside a circuit carry another prompt's values."""
