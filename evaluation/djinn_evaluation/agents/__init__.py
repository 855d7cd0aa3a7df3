"""`agents`: many sessions that generate, pause and go on, on a card that cannot hold them, kept in several ways."""
