"""A large request, and the pieces in which it goes."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.pieces import PutPiece

NUMBERS = 2**19  # of 4 bytes


def edit(session: str = "paris", numbers: int = 2 * NUMBERS) -> ask.ApplyEdit:
    """Return an edit with numbers like those of a residual stream."""
    values = np.random.default_rng(15).standard_normal(numbers, dtype=np.float32)
    return ask.ApplyEdit(
        session=session, edit=Set(value=Array(dtype="float32", shape=(numbers,), data=values.tobytes()))
    )


def pieces_of_frames(of: int, frames: list[codec.WireFrame]) -> list[PutPiece]:
    content = b"".join(bytes(frame) for frame in frames)
    sizes = tuple(memoryview(frame).nbytes for frame in frames)
    count = 2**18
    return [
        PutPiece(
            of=of,
            start=start,
            count=len(content[start : start + count]),
            content=Array.of_bytes(content[start : start + count]),
            sizes=() if start else sizes,
        )
        for start in range(0, len(content), count)
    ]
