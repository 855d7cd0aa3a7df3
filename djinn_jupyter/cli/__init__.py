"""The `djinn` command. Each file adds its commands in `add_to`; what they do is done below."""
