"""Where a model's weights are: on the device, on their way through a ring of slots, or asleep."""
