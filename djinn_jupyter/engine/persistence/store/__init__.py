"""Checkpoints and journals in a store of objects."""
