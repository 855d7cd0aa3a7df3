"""Gradients of a metric at the points of a line, by autograd through the model's own layers."""
