"""Fifty sessions on one card: all alive, each stopped with its own keys and values, each resumed bit for bit."""
