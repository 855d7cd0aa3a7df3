"""Direct attribution: the addition of each part of the model to a logit."""
