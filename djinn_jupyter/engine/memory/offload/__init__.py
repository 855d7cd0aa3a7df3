"""Copies of what has left the device, on the host and on disk, and the thread that moves them."""
