"""Replies and events that leave the engine, in order: posted from its thread, taken by the service's. Replies are
encoded before, in the thread that posts them: the service's answers others meanwhile.

Knows no network sockets; the socket pair here only wakes a thread that polls.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from dataclasses import dataclass

from djinn_jupyter.wire.codec import WireFrame, encode_reply
from djinn_jupyter.wire.replies import Event, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A reply, and the frames that say it, with the client and the request it answers."""

    peer: bytes
    number: int
    reply: Reply
    frames: list[WireFrame]

    @classmethod
    def of(cls, peer: bytes, number: int, reply: Reply) -> Outgoing:
        return cls(peer=peer, number=number, reply=reply, frames=encode_reply(number, reply))


class Outbox:
    """First in, first out, any number of posters, one taker.

    The taker clears the mark *before* it takes; a poster appends *before* it looks at the mark, and sends a byte when
    there was none. So an item that was not taken has a byte on its way, and a surplus byte only wakes.

    `let_out` is for a poster with other work to do: that work would hold Python's lock, which the taker needs to send.
    """

    def __init__(self) -> None:
        self._outgoing: deque[Outgoing | Event] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._marked = False
        self._empty = threading.Event()

    def fileno(self) -> int:
        """Return the descriptor that is readable when an item is waiting."""
        return self._reader.fileno()

    def post(self, outgoing: Outgoing | Event) -> None:
        self._empty.clear()
        self._outgoing.append(outgoing)
        self.wake()

    def wake(self) -> None:
        """End a poll on `fileno` even if no item is waiting."""
        if not self._marked:
            self._marked = True
            try:
                self._writer.send(b"\0")
            except (BlockingIOError, OSError):
                pass  # full: the taker is awake already; closed: there is no taker

    def take(self, *, woken: bool) -> list[Outgoing | Event]:
        """Take all items that are waiting. `woken`: `fileno` was readable."""
        if woken:
            self._reader.recv(64)
        self._marked = False
        return [self._outgoing.popleft() for _ in range(len(self._outgoing))]

    def note_sent(self) -> None:
        """Note that what was taken has been sent. An item posted meanwhile may end a `let_out` early: it only costs
        time."""
        if not self._outgoing:
            self._empty.set()

    def let_out(self, seconds: float) -> None:
        """Return when all items have been sent, or after so many seconds."""
        self._empty.wait(seconds)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
