"""The latest events of an engine, numbered, so that a client whose line was lost hears what it missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from djinn_jupyter.wire import codec
from djinn_jupyter.wire.replies import Event

MOST_EVENTS: Final = 20_000
MOST_BYTES: Final = 16 * 2**20


class EventRing:
    """`last` is the number of the latest event; the first has 1."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[tuple[int, Event, int]] = deque()
        self._bytes = 0
        self.last = 0

    def add(self, event: Event) -> tuple[int, list[bytes]]:
        """Return the event's number, and its frames for one who hears it as it is. Raises NotEncodable."""
        frames = codec.encode_event(self.last + 1, event)
        self.last += 1
        self._events.append((self.last, event, len(frames[1])))
        self._bytes += len(frames[1])
        while len(self._events) > self._most_events or self._bytes > self._most_bytes:
            self._bytes -= self._events.popleft()[2]
        return self.last, frames

    def after(self, number: int) -> Sequence[tuple[int, Event]] | None:
        """Return the events after that number, each with its own; None where not all of them are kept."""
        missed = self.last - number
        if not 0 <= missed <= len(self._events):
            return None
        return [(number, event) for number, event, _ in list(self._events)[len(self._events) - missed :]]
