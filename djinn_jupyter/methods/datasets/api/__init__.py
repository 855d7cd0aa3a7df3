"""Public calls and their results."""
