"""The way of the messages of one client. The one over a connection that may be lost, in pieces, and again, is in
remote/engine/connections.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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


class Transport:
    """The messages of one client over the private folder: it is its connection, and ends with it, and each message
    crosses whole, once."""

    may_return = False

    def __init__(self, peer: bytes, key: bytes) -> None:
        """Take the routing id of the client's present connection, and the key by which it came."""
        self.peer, self.key = peer, key

    def take(self, number: int) -> bool:
        """Record a request. Return False for a repeated one."""
        return True

    def known_as(self, number: int) -> RequestId | None:
        """Return the id by which a session recognizes a repeated request; None for a client that repeats none."""
        return None

    def reply_again(self, envelope: codec.Envelope[Request]) -> Frames | None:
        """Return the earlier reply of a repeated request; None where it is to be executed again."""
        return None

    def outgoing(self, number: int, reply: Reply, frames: Frames) -> Frames:
        """Return the frames to send for a reply."""
        return frames

    def confirm(self, number: int) -> None:
        """Record that the client has the replies up to that number."""
