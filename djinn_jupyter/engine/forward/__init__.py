"""Entering the model's forward: the plan of what happens at each tap, the frame that a stop leaves."""
