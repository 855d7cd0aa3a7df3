"""The original's phase 4: weights through the ring against plain Hugging Face, the flatline of the link, sleep."""
