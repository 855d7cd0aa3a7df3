"""The engine's part."""
