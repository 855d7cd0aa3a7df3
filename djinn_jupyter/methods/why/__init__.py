"""Contributions of earlier parts of the model to one attention score."""
