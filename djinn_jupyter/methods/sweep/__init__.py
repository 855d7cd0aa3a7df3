"""Sweeps: one edit at many places of a token sequence, and a metric of the logits of each."""
