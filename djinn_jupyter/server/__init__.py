"""The door for a browser: a Jupyter Server extension that finds engines, asks them and tells what they do. No torch."""
