"""Prefetch: the decision to bring a session back before a request needs it, and its statistics. Moves nothing.

A prefetch is worth it where the wait it is expected to save exceeds the wait it is expected to cause to the sessions
evicted for it. The trust in a signal is learned: some `focused` notebooks are only glanced at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Signal = Literal["focused", "expected", "announced"]

PATIENCE: Final = 60.0  # seconds in which a session must be used for its signal to have come true
MEMORY: Final = 0.98  # factor on a signal's record, at each new outcome
BEFORE: Final[dict[Signal, tuple[float, float]]] = {
    "focused": (2.0, 3.0),
    "expected": (9.0, 10.0),
    "announced": (9.0, 10.0),
}
"""Signals that came true, and all signals, assumed before any was seen."""


@dataclass(slots=True, kw_only=True)
class PrefetchCounts:
    """Prefetches begun; `hits` were on the device when requested, `late` still on their way, `wasted` left again unused
    or were not used in PATIENCE seconds."""

    begun: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0


class Prefetching:
    """Signals not yet known to be true or false, prefetches begun, and the record of each signal."""

    def __init__(self) -> None:
        self.counts = PrefetchCounts()
        self._record = dict(BEFORE)
        self._open: dict[str, tuple[Signal, float]] = {}
        self._begun: dict[str, float] = {}

    def trust(self, signal: Signal) -> float:
        """Return the probability that a session is used within PATIENCE seconds of this signal."""
        true, all_ = self._record[signal]
        return true / all_

    def signalled(self, session: str, signal: Signal, now: float) -> None:
        """Note a signal; the first of a series counts, unless a stronger one follows."""
        self.expire(now)
        present = self._open.get(session)
        if present is None or (signal != "focused" and present[0] == "focused"):
            if present is not None:
                self._settle(present[0], came_true=True)
            self._open[session] = (signal, now)

    def worth_it(self, signal: Signal, restore_seconds: float, leaving: Iterable[tuple[float, float]] = ()) -> bool:
        """True where the expected saving exceeds the expected cost. `restore_seconds`: the session's wait without a
        prefetch. `leaving`: for each session to be evicted, the probability that it is used within PATIENCE and its
        wait then. They leave anyway when the session is used, so a prefetch costs them only where it is wrong."""
        trust = self.trust(signal)
        caused = sum(chance * seconds for chance, seconds in leaving)
        return trust * restore_seconds > (1.0 - trust) * caused

    def began(self, session: str, now: float) -> None:
        self.counts.begun += 1
        self._begun[session] = now

    def used(self, session: str, now: float, *, present: bool) -> None:
        """Note a request for the session; `present`: its bytes were on the device."""
        self.expire(now)
        signalled = self._open.pop(session, None)
        if signalled is not None:
            self._settle(signalled[0], came_true=True)
        if self._begun.pop(session, None) is not None:
            self.counts.hits += present
            self.counts.late += not present

    def left(self, session: str) -> None:
        """Note that the session has left the device or was closed."""
        if self._begun.pop(session, None) is not None:
            self.counts.wasted += 1

    def expire(self, now: float) -> None:
        """Count signals and prefetches older than PATIENCE as false."""
        for session, (signal, when) in list(self._open.items()):
            if now - when > PATIENCE:
                del self._open[session]
                self._settle(signal, came_true=False)
        for session, when in list(self._begun.items()):
            if now - when > PATIENCE:
                self.left(session)

    def _settle(self, signal: Signal, *, came_true: bool) -> None:
        true, all_ = self._record[signal]
        self._record[signal] = (MEMORY * true + came_true, MEMORY * all_ + 1.0)
