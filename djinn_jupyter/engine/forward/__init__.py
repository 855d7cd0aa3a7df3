"""One entry into the model's forward: the plan of what happens where, the frame that a stop leaves."""
