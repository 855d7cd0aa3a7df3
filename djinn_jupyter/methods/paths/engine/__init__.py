"""The engine's side."""

from djinn_jupyter.methods.paths.engine import path_sweep as path_sweep
