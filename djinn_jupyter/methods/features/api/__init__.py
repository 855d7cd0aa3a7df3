"""A feature's page in Python."""
