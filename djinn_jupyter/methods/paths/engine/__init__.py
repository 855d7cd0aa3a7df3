"""The engine's part."""

from djinn_jupyter.methods.paths.engine import way as way
