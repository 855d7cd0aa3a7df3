"""The requests and their replies."""

from __future__ import annotations

from djinn_jupyter.methods.datasets.request import collecting, scoring

__all__ = ["collecting", "scoring"]
