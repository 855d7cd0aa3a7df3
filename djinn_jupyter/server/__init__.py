"""The Jupyter Server extension: finds engines, forwards a browser's requests, reports their state. Imports no torch."""
