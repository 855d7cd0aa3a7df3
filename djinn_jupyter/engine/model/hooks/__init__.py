"""Hooks in the model's own forward: gates to leave and enter at, taps that read and replace values."""
