"""Engines on other machines: their addresses and keys, connections that may be lost, and messages in pieces."""
