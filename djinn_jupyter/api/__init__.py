"""The public Python API: load, engines, sessions, stops, results."""
