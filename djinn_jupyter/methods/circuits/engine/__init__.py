"""Runs in which edges carry the values of another prompt: single edges, and circuits."""
