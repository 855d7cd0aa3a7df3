"""The error for memory accounting that contradicts itself; every module of the engine may raise it."""

from djinn_jupyter.errors import DjinnError


class InvariantError(DjinnError):
    """The memory accounting contradicts itself, or a caller asked for what it excludes: a fault in the engine."""
