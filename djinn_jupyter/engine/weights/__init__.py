"""Where a model's weights are: on the device, on their way through a ring of slots, or away while nobody needs them.

Knows parameters, bytes and copies; what a layer computes and which session waits for it is not its concern.
"""
