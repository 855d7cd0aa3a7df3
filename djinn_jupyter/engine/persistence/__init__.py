"""Sessions that outlive the process: images of them, files that hold images, and the way back."""
