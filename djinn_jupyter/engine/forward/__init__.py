"""Entering the model's forward: the plan of the rules, watches and halts at each tap, the frame that a stop leaves."""
