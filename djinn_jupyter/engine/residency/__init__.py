"""Who is on the device and who has to leave it, and when they come back."""
