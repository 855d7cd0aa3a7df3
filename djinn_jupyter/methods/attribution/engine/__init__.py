"""Gradients of a metric at the points of a token sequence, by autograd through the model's own layers."""

from djinn_jupyter.methods.attribution.engine import attributing as attributing
