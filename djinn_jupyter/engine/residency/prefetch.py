"""Whether to bring a session back before it is asked for: a bet on a signal, and the books of such bets. Moves nothing.

A bet is worth taking where the wait that it is expected to save exceeds the wait that it is expected to cause to those
who leave for it. What a signal means is learned: of `focused` notebooks some are only glanced at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Signal = Literal["focused", "expected"]

PATIENCE: Final = 60.0  # seconds in which a session must be used for its signal to have come true
MEMORY: Final = 0.98  # of a signal's record, at each new outcome
BEFORE: Final[dict[Signal, tuple[float, float]]] = {"focused": (2.0, 3.0), "expected": (9.0, 10.0)}
"""Came true, and all, before anything was seen."""


@dataclass(slots=True, kw_only=True)
class PrefetchBooks:
    """Prefetches begun; `hits` were there when asked for, `late` still on their way, `wasted` went again unused or were
    not used in PATIENCE seconds."""

    begun: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0


class Prefetching:
    """Signals that have not come true or false yet, those of them that were acted on, and the record of each signal."""

    def __init__(self) -> None:
        self.books = PrefetchBooks()
        self._record = dict(BEFORE)
        self._open: dict[str, tuple[Signal, float]] = {}
        self._begun: dict[str, float] = {}

    def trust(self, signal: Signal) -> float:
        """The probability that a session is used within PATIENCE seconds of this signal."""
        true, all_ = self._record[signal]
        return true / all_

    def signalled(self, session: str, signal: Signal, now: float) -> None:
        """A signal came; the first one of a series counts, unless a stronger one follows."""
        self.expire(now)
        present = self._open.get(session)
        if present is None or (signal == "expected" and present[0] == "focused"):
            if present is not None:
                self._settle(present[0], came_true=True)
            self._open[session] = (signal, now)

    def worth_it(self, signal: Signal, restore_seconds: float, leaving: Iterable[tuple[float, float]] = ()) -> bool:
        """`restore_seconds`: what the session would have to wait. `leaving`: for those who would have to go, the
        probability that they are wanted within PATIENCE and what they would then wait. They would go anyway when the
        session is used; so they suffer by the bet only where it is lost."""
        trust = self.trust(signal)
        caused = sum(chance * seconds for chance, seconds in leaving)
        return trust * restore_seconds > (1.0 - trust) * caused

    def began(self, session: str, now: float) -> None:
        self.books.begun += 1
        self._begun[session] = now

    def used(self, session: str, now: float, *, present: bool) -> None:
        """The session was asked for; `present`: its bytes were there."""
        self.expire(now)
        signalled = self._open.pop(session, None)
        if signalled is not None:
            self._settle(signalled[0], came_true=True)
        if self._begun.pop(session, None) is not None:
            self.books.hits += present
            self.books.late += not present

    def left(self, session: str) -> None:
        """It has gone from the device, or for good."""
        if self._begun.pop(session, None) is not None:
            self.books.wasted += 1

    def expire(self, now: float) -> None:
        """What has not come true in time was false."""
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
