"""Where the model of a baseline lies."""

from __future__ import annotations

from djinn_jupyter.demo import MODEL_PATH


def source_of(model: str) -> str:
    """Return the folder of `demo`; folders and hub names are what they are."""
    return str(MODEL_PATH) if model == "demo" else model
