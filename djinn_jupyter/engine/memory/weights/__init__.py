"""Residency of a model's weights: on the device, streamed through a ring of slots, or asleep."""
