"""The engine's log: its lines, the request that each belongs to, and where they are written."""
