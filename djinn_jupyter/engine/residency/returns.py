"""The moments at which to begin to bring back sessions that announced their return. The clock is the caller's."""

from __future__ import annotations

from math import inf
from typing import Final

MARGIN_SECONDS: Final = 0.1  # a layer of another session's prefill may lie between two looks
TIMES_THE_WAY: Final = 2.0  # past moves are slower and faster than their mean
AGAIN_SECONDS: Final = 0.1  # after a look that found no room


def lead(way_back: float) -> float:
    """Return how long before its return a session sets out, whose bytes need `way_back` seconds."""
    return MARGIN_SECONDS + TIMES_THE_WAY * way_back


class Returns:
    """Each session is planned once, until its moment has come or it is withdrawn."""

    def __init__(self) -> None:
        self._begin: dict[str, float] = {}
        self.soonest = inf

    def plan(self, session: str, begin: float) -> None:
        self._begin[session] = begin
        self.soonest = min(self._begin.values())

    def withdraw(self, session: str) -> None:
        if self._begin.pop(session, None) is not None:
            self.soonest = min(self._begin.values(), default=inf)

    def take(self, now: float) -> list[str]:
        """Return the sessions whose moment has come, the first one first; they are no longer planned."""
        come = sorted((name for name, begin in self._begin.items() if begin <= now), key=self._begin.__getitem__)
        for name in come:
            self.withdraw(name)
        return come
