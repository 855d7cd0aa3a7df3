"""The folder or hub name of a baseline's model."""

from __future__ import annotations

from djinn_jupyter.demo import MODEL_PATH


def source_of(model: str) -> str:
    """Return the folder of `demo`; folders and hub names are returned unchanged."""
    return str(MODEL_PATH) if model == "demo" else model
