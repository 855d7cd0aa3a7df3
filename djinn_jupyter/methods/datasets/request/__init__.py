"""The requests and their replies."""
