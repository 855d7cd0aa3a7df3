"""Replies that are ready, held until the journal and the published state have the state that they report."""

from __future__ import annotations

from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.system.counters import Counters
from djinn_jupyter.wire.replies import Reply


class Answers:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._ready: list[tuple[QueuedRequest, Reply]] = []

    def add(self, queued: QueuedRequest, reply: Reply) -> None:
        queued.note_answered()
        self._counters.count_answer()
        self._ready.append((queued, reply))

    def take(self) -> list[tuple[QueuedRequest, Reply]]:
        """Return those that are to go out now, in order."""
        ready, self._ready = self._ready, []
        return ready
