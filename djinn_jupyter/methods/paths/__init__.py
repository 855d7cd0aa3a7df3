"""Path patching: one edit between two places, through the paths that are named."""
