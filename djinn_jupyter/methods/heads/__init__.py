"""Heads: scores by where each attends, and the patterns of a token sequence."""
