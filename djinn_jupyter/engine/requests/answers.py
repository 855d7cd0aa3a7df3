"""Replies that are ready, held until the journal and the published state have what they report."""

from __future__ import annotations

from djinn_jupyter.engine.scheduling.mailbox import Letter
from djinn_jupyter.engine.system.counters import Counters
from djinn_jupyter.wire.replies import Reply


class Answers:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._ready: list[tuple[Letter, Reply]] = []

    def add(self, letter: Letter, reply: Reply) -> None:
        letter.answered = True
        self._counters.requests_answered += 1
        self._ready.append((letter, reply))

    def take(self) -> list[tuple[Letter, Reply]]:
        """Return those that are to go out now, in order."""
        ready, self._ready = self._ready, []
        return ready
