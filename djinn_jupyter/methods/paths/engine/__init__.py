"""The engine's part."""

from djinn_jupyter.methods.paths.engine import path_sweep as path_sweep
