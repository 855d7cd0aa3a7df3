"""Folders of modules that a client adds to a model, read as tensors and a declared form. Runs nothing of theirs."""
