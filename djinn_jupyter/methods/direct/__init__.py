"""Direct attribution: what each part of the model adds to a logit."""
