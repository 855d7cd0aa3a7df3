"""Path patching: one edit that only named receivers see."""
