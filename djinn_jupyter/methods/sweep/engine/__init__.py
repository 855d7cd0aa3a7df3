"""Sweeps: one edit at many places of a line, a metric of the logits of each."""
