"""A large reply over a line to another machine: its frames, one behind the other, are read in pieces, each as small as
the line is slow.

    request 7            InPieces(sizes)             in place of the reply, which the engine keeps
    ReadPiece(of=7) ...  PieceRead                       any number at once, in any order, as often as needed
    DropPieces(of=7)     Dropped                     all are there, or no one waits for them any more
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase

WHOLE_BYTES: Final = 256 * 2**10
"""A reply up to this size is sent whole."""
MOST_BYTES: Final = 2 * 2**20  # of a piece


class InPieces(ReplyBase, frozen=True, tag="InPieces"):
    """The reply is there: its frames have these `sizes` in bytes, the envelope first."""

    sizes: tuple[int, ...]


class ReadPiece(RequestBase, frozen=True, tag="ReadPiece"):
    """Read `count` bytes of the reply to request number `of`, from `start` on. `packed`: compressed without loss where
    that makes them fewer."""

    of: int
    start: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1, le=MOST_BYTES)]
    packed: bool = False


class PieceRead(ReplyBase, frozen=True, tag="PieceRead"):
    """The bytes: as they are where `stride` is None, else packed with it (packing.py), which took so many `seconds`."""

    content: Array
    stride: int | None = None
    seconds: float = 0.0


class DropPieces(RequestBase, frozen=True, tag="DropPieces"):
    """Let go of the reply to request number `of`."""

    of: int


class Dropped(ReplyBase, frozen=True, tag="Dropped"): ...
