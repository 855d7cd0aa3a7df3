"""A large message to another machine: its concatenated frames go in pieces, whose size follows the speed of the
connection.

    request 7            InPieces(sizes)    in place of the reply, which the engine keeps
    ReadPiece(of=7) ...  PieceRead          any number at once, in any order, as often as needed
    DropPieces(of=7)     Dropped            all have arrived, or no one waits for them any more

    PutPiece(of=8) ...   PieceTaken         of a large request, in order, before its own number is used
    request 8: Assemble  its reply          all pieces are there: they are request 8 from here on
    DropPieces(of=8)     Dropped            in place of that: the request is withdrawn, and nothing was done
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.errors import MalformedMessage
from djinn_jupyter.wire.arrays import Array, unpack
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase

WHOLE_BYTES: Final = 256 * 2**10
"""A message up to this size is sent whole."""
MOST_BYTES: Final = 2 * 2**20  # of a piece
MOST_FRAMES: Final = 4096  # of a message
Sizes = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MOST_FRAMES)]


class InPieces(ReplyBase):
    """The reply is ready: its frames have these `sizes` in bytes, the envelope first."""

    sizes: Sizes


class PieceRead(ReplyBase):
    """The bytes: unchanged where `stride` is None, else packed with it, which took so many `seconds`."""

    content: Array
    stride: int | None = None
    seconds: float = 0.0


class ReadPiece(RequestBase[PieceRead], unasked="line", resent="anew"):
    """Read `count` bytes of the reply to request number `of`, from `start` on. `packed`: compressed without loss where
    that makes them fewer."""

    of: int
    start: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1, le=MOST_BYTES)]
    packed: bool = False


class Dropped(ReplyBase): ...


class DropPieces(RequestBase[Dropped], unasked="line", resent="anew", small=True):
    """Drop the reply to request number `of`, and the pieces of that request itself."""

    of: int


class PieceTaken(ReplyBase):
    """The engine has the bytes up to there; unpacking the piece took so many `seconds`."""

    seconds: float = 0.0


class PutPiece(RequestBase[PieceTaken], unasked="line", resent="anew"):
    """Deliver `count` bytes of request number `of`, from `start` on, unchanged or packed with a `stride`. The first one
    has the `sizes` of its frames, the envelope first."""

    of: int
    start: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1, le=MOST_BYTES)]
    content: Array
    stride: int | None = None
    sizes: Sizes = ()


class Assemble(RequestBase[ReplyBase], unasked="line"):
    """Execute the request whose pieces were delivered under this number."""


PieceRequest = ReadPiece | DropPieces | PutPiece | Assemble


def part_of(frames: Sequence[bytes | memoryview], start: int, count: int) -> bytes:
    """Return bytes of the concatenated frames."""
    read: list[memoryview] = []
    for frame in frames:
        content = memoryview(frame).cast("B")
        read.append(content[max(start, 0) : max(start + count, 0)])
        start -= content.nbytes
    return b"".join(read)


def unpacked(content: Array, stride: int | None, count: int) -> memoryview:
    """Return the `count` bytes of a piece. MalformedMessage where there are not so many."""
    data = content.data if stride is None else memoryview(unpack(content.data, stride, count))
    if data.nbytes != count:
        raise MalformedMessage(f"A piece of {count} bytes came as {data.nbytes}.")
    return data


def sizes_of(frames: Sequence[bytes | memoryview]) -> tuple[int, ...]:
    """Return the bytes of each frame."""
    return tuple(memoryview(frame).nbytes for frame in frames)


def is_large(frames: Sequence[bytes | memoryview]) -> bool:
    """Return whether a message goes in pieces to another machine."""
    return sum(sizes_of(frames)) > WHOLE_BYTES
