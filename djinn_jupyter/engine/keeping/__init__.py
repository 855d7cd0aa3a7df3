"""Sessions that outlive a process: images of them, files that hold images, and the way back."""
