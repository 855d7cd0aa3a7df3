"""The engine's side."""
