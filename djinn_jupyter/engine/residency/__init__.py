"""The sessions on the device: their eviction, and their way back."""
