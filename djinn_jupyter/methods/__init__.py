"""Methods: one folder for each, which the core finds by the registry."""
