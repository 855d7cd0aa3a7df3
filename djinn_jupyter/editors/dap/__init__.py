"""The Debug Adapter Protocol for engines."""
