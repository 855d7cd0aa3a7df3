"""Engines on this machine: found in the registry, started, named; and whose their sessions are. Sends no request."""
