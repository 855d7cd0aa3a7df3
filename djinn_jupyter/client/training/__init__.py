"""Have a module trained on a collection: the call is checked here, and a process of its own computes it."""
