"""Digests in a shard's note: of each tensor with its form, and of the rest of the note. The engine that writes a
shard and the kernel that reads it compute them here. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from djinn_jupyter._version import __version__

WRITTEN: Final = "written"  # the entry of the note
NOTE: Final = "note"
_BYTES: Final = 16


def written(note: Mapping[str, Any], tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry for a note and the digests of its tensors by name."""
    return {"version": __version__, "tensors": dict(tensors), NOTE: of_note(note)}


def of_tensor(dtype: str, shape: Iterable[int], pieces: Iterable[bytes | memoryview]) -> str:
    """Return the digest of a tensor of a safetensors dtype, whose bytes come in pieces."""
    digest = hashlib.blake2b(f"{dtype} {list(shape)} ".encode(), digest_size=_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def of_note(note: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in note.items() if name != WRITTEN}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()
