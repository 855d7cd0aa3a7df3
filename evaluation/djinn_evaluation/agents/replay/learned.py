"""Rests whose length is learned from all earlier pauses, as the engine did before (there by the focus too).

A table of hazards that are constant between the edges of an interval (the piecewise exponential model: Holford 1980,
"The analysis of rates and of survivorship using log-linear models", Biometrics 36): returns / seconds waited, interval
by interval. Unlike a histogram of lengths it also learns from pauses that have not ended, and from pauses seen only in
part. Before any pause was seen, the longer a pause has lasted, the longer it is expected to go on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from djinn_jupyter.engine.residency.activity import IdleTimes

HORIZON: Final = 7 * 86400.0  # seconds; no pause is expected to last longer
SHORTEST: Final = 0.25
EDGES: Final = (0.0, *(SHORTEST * 2 ** (n / 2) for n in range(math.ceil(2 * math.log2(HORIZON / SHORTEST)))), HORIZON)
MEMORY: Final = 400.0  # returns; a return that many further back counts for 1/e
UNSEEN: Final = 0.25  # of a return in every interval, at a hazard of 1 / elapsed


class LearnedTimes(IdleTimes):
    """A rest of which its length was said teaches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._pauses = ReuseModel()
        self._learned: dict[str, float] = {}

    def acts(self, session: str, now: float) -> None:
        if session in self._rests:
            self._learn(session, now, returned=True)
        super().acts(session, now)

    def forget(self, session: str) -> None:
        super().forget(session)
        self._learned.pop(session, None)

    def catch_up(self, now: float) -> None:
        """Learn from the rests under way, as far as they have lasted."""
        for session in self._rests:
            self._learn(session, now, returned=False)

    def remaining(self, session: str, now: float, *, focused: bool | None = None) -> float:
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return self._pauses.remaining(self.lasted(session, now)) if session in self._rests else 0.0

    def _learn(self, session: str, now: float, *, returned: bool) -> None:
        rest = self._rests[session]
        if rest.due is None:
            begin = self._learned.get(session, rest.since) - rest.since
            self._pauses.learn(min(begin, HORIZON), min(now - rest.since, HORIZON), returned=returned)
            self._learned[session] = now


class ReuseModel:
    """The pauses of all sessions. All times in seconds; a pause lasts 0 .. HORIZON."""

    def __init__(self) -> None:
        self._returns = [0.0] * (len(EDGES) - 1)
        self._waited = [0.0] * (len(EDGES) - 1)
        self._beyond: list[float] | None = None

    def learn(self, begin: float, end: float, *, returned: bool) -> None:
        """Learn that a pause of `begin` seconds so far lasted at least until `end`; `returned`: it ended then."""
        begin, end = min(begin, HORIZON), min(end, HORIZON)
        if not 0.0 <= begin <= end:
            raise ValueError(f"A part of a pause ends after it begins; here from {begin} to {end}.")
        for n in range(_interval(begin), _interval(end) + 1):
            self._waited[n] += max(0.0, min(end, EDGES[n + 1]) - max(begin, EDGES[n]))
        if returned:
            self._forget()
            self._returns[_interval(end)] += 1.0
        self._beyond = None

    def remaining(self, lasted: float) -> float:
        """Return the seconds that a pause of `lasted` seconds is expected to go on; at most HORIZON."""
        lasted = min(lasted, HORIZON)
        n = _interval(lasted)
        return _within(self._hazard(n), EDGES[n + 1] - lasted, self._table()[n + 1])

    def _hazard(self, n: int) -> float:
        """Return the hazard (returns a second) between EDGES[n] and EDGES[n + 1]."""
        return (self._returns[n] + UNSEEN) / (self._waited[n] + UNSEEN * _middle(n))

    def _forget(self) -> None:
        """Scale all that was learned by one factor: hazards stay the same and new returns weigh more."""
        keep = math.exp(-1.0 / MEMORY)
        self._returns = [keep * returns for returns in self._returns]
        self._waited = [keep * waited for waited in self._waited]

    def _table(self) -> list[float]:
        """Return the seconds expected from every edge on, computed from the horizon backwards after each learning."""
        if self._beyond is None:
            self._beyond = [0.0] * len(EDGES)
            for n in reversed(range(len(EDGES) - 1)):
                self._beyond[n] = _within(self._hazard(n), EDGES[n + 1] - EDGES[n], self._beyond[n + 1])
        return self._beyond


def _within(hazard: float, seconds: float, beyond: float) -> float:
    """Return the expected seconds: up to `seconds` at this hazard, and `beyond` for pauses that last so long."""
    lasting = math.exp(-hazard * seconds)
    return -math.expm1(-hazard * seconds) / hazard + lasting * beyond


def _interval(seconds: float) -> int:
    return min(bisect_right(EDGES, seconds), len(EDGES) - 1) - 1


def _middle(n: int) -> float:
    return math.sqrt(max(EDGES[n], SHORTEST / 4) * EDGES[n + 1])
