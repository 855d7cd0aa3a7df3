"""Sessions that outlive the process: their images, the files that hold images, and recovery."""
