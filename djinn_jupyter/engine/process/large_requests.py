"""Requests with large envelopes, read a part at a turn of the service, which answers others between the parts. Later
messages of the same connection wait, in order. Knows no sockets; called from one thread.

Python frees a tuple of a million pairs in one go, in whatever thread drops it last, and no other runs meanwhile (30 ms
quiet, 900 ms on two loaded cores for four million). So the entries of long lists are kept here until the list has no
other owner, and then freed in parts.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from djinn_jupyter.errors import EngineError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.codec import Parts, Whole, decode_in_parts, is_large
from djinn_jupyter.wire.keys import LOCAL, PublicKey
from djinn_jupyter.wire.pieces import sizes_of
from djinn_jupyter.wire.requests import Request

Frames = list[codec.WireFrame]
Read = Callable[[], codec.Envelope[Request]]
Then = Callable[[Read], None]
MOST_WAITING: Final = 256 * 2**20  # bytes of one person that wait to be read, beside one request of any size
FREED_SECONDS: Final = 0.001  # at a turn
FREED_AT_ONCE: Final = 4  # entries, which may be lists of a part's size
LOOKED_AT: Final = 64  # lists at a turn
NOT_READ: Final = (
    f"The engine does not take this request: {spell_bytes(MOST_WAITING)} of requests of yours wait to be read. Await "
    "their replies, and ask again; nothing of it was done."
)


class _PeerRequests:
    """Requests of one connection in order of arrival; the first is being read."""

    def __init__(self, key: PublicKey) -> None:
        self.key = key
        self.requests: deque[tuple[Frames, Then]] = deque()
        self.parts: Parts | None = None
        self.size = 0


class LargeRequests:
    """`bounds` are the longest lists by the part of the model that limits them (`wire/base.py`)."""

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds
        self._waiting: dict[bytes, _PeerRequests] = {}
        self._lists: deque[Whole] = deque()
        self._freed: list[Any] = []  # the entries of a list without an owner

    @property
    def busy(self) -> bool:
        """Return whether some are still to be read, or freed."""
        return bool(self._waiting or self._freed)

    def read(self, peer: bytes, key: PublicKey, frames: Frames, then: Then) -> None:
        """Call `then` with a function that returns the request of these frames, or raises why there is none: at once
        for a small one, otherwise when it and earlier ones of this connection are read. Those of another key that had
        its routing id before are dropped. A person, by the `key`, has a limited number of bytes here; the engine's own
        user (LOCAL) has not."""
        waiting = self._waiting.get(peer)
        if waiting is not None and waiting.key != key:
            del self._waiting[peer]
            waiting = None
        if waiting is None and not is_large(frames):
            return then(lambda: codec.decode_request(frames))
        size = sum(sizes_of(frames))
        there = sum(one.size for one in self._waiting.values() if one.key == key)
        if key != LOCAL and there and there + size > MOST_WAITING:
            return then(_refused)
        waiting = self._waiting.setdefault(peer, _PeerRequests(key))
        waiting.requests.append((frames, then))
        waiting.size += size

    def go_on(self) -> None:
        """Read one part of the first request of a connection; connections take turns. Free lists without an owner."""
        if self._waiting:
            peer = next(iter(self._waiting))
            self._waiting[peer] = self._waiting.pop(peer)
            self._read_part(peer)
        if not self._freed:
            self._freed = self._take_unused()
        until = time.monotonic() + FREED_SECONDS
        while self._freed:
            del self._freed[-FREED_AT_ONCE:]
            if time.monotonic() >= until:
                break

    def _take_unused(self) -> list[Any]:
        """Take out the entries of a list without another owner; a list of lists was added after them."""
        for _ in range(min(LOOKED_AT, len(self._lists))):
            self._lists.rotate()
            if sys.getrefcount(self._lists[0][0]) <= 2:  # by the pair, and by this very question
                return self._lists.popleft()[1]
        return []

    def _read_part(self, peer: bytes) -> None:
        waiting = self._waiting[peer]
        frames, _ = waiting.requests[0]
        waiting.parts = waiting.parts or decode_in_parts(frames, self._bounds)
        try:
            whole = next(waiting.parts)
            if whole is not None:
                self._lists.append(whole)
        except StopIteration as end:
            envelope = end.value
            self._done(peer, waiting, lambda: envelope)
        except Exception as error:  # noqa: BLE001  raised again where the request is answered
            self._done(peer, waiting, _raising(error))

    def _done(self, peer: bytes, waiting: _PeerRequests, result: Read) -> None:
        frames, then = waiting.requests.popleft()
        waiting.size -= sum(sizes_of(frames))
        waiting.parts = None
        if not waiting.requests:
            del self._waiting[peer]
        then(result)


def _refused() -> codec.Envelope[Request]:
    raise EngineError(NOT_READ)


def _raising(error: Exception) -> Read:
    def read() -> codec.Envelope[Request]:
        raise error

    return read
