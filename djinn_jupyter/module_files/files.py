"""The files of a module's folder, read whole: contents up to a size, a declaration in JSON. Nothing in them is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.plain_files import open_plain

MOST_DECLARATION: Final = 2**20
MOST_BYTES: Final = 2**32  # what one message carries
PICKLES: Final = (".pt", ".pth", ".bin", ".pkl")


def contents_of(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Raises UsageError where it is larger, or cannot be read."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise UsageError(f"{path} has {spell_bytes(size)}, and at most {spell_bytes(most)} are read of it.")
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def object_in(path: Path, declared: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises UsageError."""
    try:
        found = json.loads(declared)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} cannot be read as a JSON object.")
    return found


def pickle_among(folder: Path) -> str | None:
    """Return a sentence about the first pickle in a folder; None where there is none."""
    pickles = sorted(one.name for one in folder.iterdir() if one.suffix in PICKLES)
    if not pickles:
        return None
    return f"{pickles[0]} is a pickle, which is code and never read: save its tensors by safetensors."
