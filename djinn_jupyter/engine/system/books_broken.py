"""The error of books that do not hold: everybody in this folder may find one."""

from djinn_jupyter.errors import DjinnError


class BooksBroken(DjinnError):
    """The memory's books contradict themselves, or a caller asked for what they exclude: a fault in the engine."""
