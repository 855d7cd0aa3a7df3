"""Circuits: scores of edges, and lines in which the edges outside of a circuit carry another line's values."""
