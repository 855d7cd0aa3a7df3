"""Engines on other machines: their addresses and keys, lines that may be lost, and messages in pieces."""
