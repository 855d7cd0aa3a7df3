"""`djinn experiment`, as the package registers it with the command `djinn`."""
