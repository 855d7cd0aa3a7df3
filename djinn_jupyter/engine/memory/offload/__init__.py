"""Copies, on the host and on disk, of data that left the device, and the thread that moves them."""
