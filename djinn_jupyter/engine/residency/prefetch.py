"""Statistics of prefetches: sessions brought back before a request needs them. Moves nothing, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Signal = Literal["focused", "expected", "announced"]

PATIENCE: Final = 60.0  # seconds in which a session must be used for its signal to have come true
MEMORY: Final = 0.98  # factor on the record of the focus, at each new outcome
BEFORE: Final = (2.0, 3.0)  # notebooks in focus whose session was used, and all, assumed before any was seen


@dataclass(slots=True, kw_only=True)
class PrefetchCounts:
    """Prefetches begun; `hits` were on the device when requested, `late` still on their way, `wasted` left again unused
    or were not used in PATIENCE seconds."""

    begun: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0


class Prefetching:
    """Notebooks in focus whose session was not used yet, prefetches begun, and the record of the focus."""

    def __init__(self) -> None:
        self.counts = PrefetchCounts()
        self._record = BEFORE
        self._in_focus: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    @property
    def trust_in_focus(self) -> float:
        """The probability that a session is used within PATIENCE seconds of its notebook's focus."""
        true, all_ = self._record
        return true / all_

    def signalled(self, session: str, signal: Signal, now: float) -> None:
        """Note a signal; the first focus of a series counts, and has come true where a cell follows."""
        self.expire(now)
        if signal == "focused":
            self._in_focus.setdefault(session, now)
        else:
            self._settle(session, came_true=True)

    def began(self, session: str, now: float) -> None:
        self.counts.begun += 1
        self._begun[session] = now

    def used(self, session: str, now: float, *, present: bool) -> None:
        """Note a request for the session; `present`: its bytes were on the device."""
        self.expire(now)
        self._settle(session, came_true=True)
        if self._begun.pop(session, None) is not None:
            self.counts.hits += present
            self.counts.late += not present

    def left(self, session: str) -> None:
        """Note that the session has left the device or was closed."""
        if self._begun.pop(session, None) is not None:
            self.counts.wasted += 1

    def expire(self, now: float) -> None:
        """Count signals and prefetches older than PATIENCE as false."""
        for session, when in list(self._in_focus.items()):
            if now - when > PATIENCE:
                self._settle(session, came_true=False)
        for session, when in list(self._begun.items()):
            if now - when > PATIENCE:
                self.left(session)

    def _settle(self, session: str, *, came_true: bool) -> None:
        if self._in_focus.pop(session, None) is not None:
            true, all_ = self._record
            self._record = (MEMORY * true + came_true, MEMORY * all_ + 1.0)
