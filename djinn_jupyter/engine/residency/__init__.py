"""Which sessions are on the device, which are evicted, and when they come back."""
