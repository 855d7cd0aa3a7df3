"""The way of the messages of one client: whole over the private folder, or in pieces, and again, over a line that may
be lost (remote/engine/lines.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.pieces import sizes_of
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Request

Frames = list[codec.WireFrame]
MESSAGE_BYTES: Final = 500  # overhead of Python and zmq for a message, besides its frames


def bytes_of(frames: Sequence[codec.WireFrame]) -> int:
    """Return the memory that a message takes."""
    return MESSAGE_BYTES + sum(sizes_of(frames))


class Transport(Protocol):
    @property
    def peer(self) -> bytes:
        """The routing id of the client's present connection."""

    @property
    def key(self) -> bytes:
        """The key by which the client came."""

    @property
    def outlives_lines(self) -> bool: ...
    def take(self, number: int) -> bool:
        """Record a request. Return False for a repeated one."""

    def known_as(self, number: int) -> RequestId | None:
        """Return the id by which a session recognizes a repeated request; None for a client that repeats none."""

    def reply_again(self, envelope: codec.Envelope[Request]) -> Frames | None:
        """Return the earlier reply of a repeated request; None where it is to be executed again."""

    def outgoing(self, number: int, reply: Reply, frames: Frames) -> Frames:
        """Return the frames to send for a reply."""

    def confirm(self, number: int) -> None:
        """Record that the client has the replies up to that number."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A client that is its connection, and ends with it. Each message crosses whole, once."""

    peer: bytes
    key: bytes
    outlives_lines = False

    def take(self, number: int) -> bool:
        return True

    def known_as(self, number: int) -> RequestId | None:
        return None

    def reply_again(self, envelope: codec.Envelope[Request]) -> Frames | None:
        return None

    def outgoing(self, number: int, reply: Reply, frames: Frames) -> Frames:
        return frames

    def confirm(self, number: int) -> None: ...
