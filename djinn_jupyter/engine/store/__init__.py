"""A session outside its engine's memory: its image, the files of checkpoints and journals, and its way back."""
