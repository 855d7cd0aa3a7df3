"""Where the model of a baseline lies."""

from __future__ import annotations

from importlib import resources


def source_of(model: str) -> str:
    """`demo` is a folder of the package; folders and hub names are what they are."""
    return str(resources.files("djinn_jupyter.demo") / "model") if model == "demo" else model
