"""`djinn experiment`, which the package registers with the command `djinn`."""
