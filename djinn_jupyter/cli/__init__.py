"""The `djinn` command. Each file adds its commands in `add_to`; the folders below do the work."""
