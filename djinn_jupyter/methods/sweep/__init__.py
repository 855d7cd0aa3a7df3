"""Sweeps: one edit at many places of a line, and a metric of the logits of each."""
