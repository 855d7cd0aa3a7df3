"""A text as a whole: what the model made of each of its tokens."""
