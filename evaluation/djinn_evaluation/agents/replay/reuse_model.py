"""The expected rest of a pause, learned from past pauses. Knows neither sessions nor clocks.

A table of hazards that are constant between the edges of an interval (the piecewise exponential model: Holford 1980,
"The analysis of rates and of survivorship using log-linear models", Biometrics 36): returns / seconds waited, interval
by interval. Unlike a histogram of lengths it also learns from pauses that have not ended, those of closed laptops above
all, and from pauses seen only in part. Before any pause was seen, the longer a pause has lasted, the longer it is
expected to go on: times between a person's actions have heavy tails (Blenn and Van Mieghem 2016, "Are human
interactivity times lognormal?", arXiv:1607.02952).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

HORIZON: Final = 7 * 86400.0  # seconds; no pause is expected to last longer
SHORTEST: Final = 0.25
EDGES: Final = (0.0, *(SHORTEST * 2 ** (n / 2) for n in range(math.ceil(2 * math.log2(HORIZON / SHORTEST)))), HORIZON)
MEMORY: Final = 400.0  # returns; a return that many further back counts for 1/e
UNSEEN: Final = 0.25  # of a return in every interval, at a hazard of 1 / elapsed
LIKE_OTHERS: Final = 2.0  # returns in every interval, at the hazard of all pauses


class ReuseModel:
    """The pauses of one kind. All times in seconds; a pause lasts 0 .. HORIZON. `among`: the pauses of all kinds, the
    prior for this kind."""

    def __init__(self, among: ReuseModel | None = None) -> None:
        self._among = among
        self._returns = [0.0] * (len(EDGES) - 1)
        self._waited = [0.0] * (len(EDGES) - 1)
        self._learned = 0
        self._beyond: tuple[int, list[float]] = (-1, [])

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
        self._learned += 1

    def remaining(self, lasted: float) -> float:
        """Return the seconds that a pause of `lasted` seconds is expected to go on; at most HORIZON."""
        lasted = min(lasted, HORIZON)
        n = _interval(lasted)
        return _within(self._hazard(n), EDGES[n + 1] - lasted, self._table()[n + 1])

    def chance(self, lasted: float, within: float) -> float:
        """Return the probability that a pause of `lasted` seconds ends in the next `within` seconds."""
        begin, end = min(lasted, HORIZON), min(lasted + within, HORIZON)
        total = 0.0
        for n in range(_interval(begin), _interval(end) + 1):
            total += self._hazard(n) * max(0.0, min(end, EDGES[n + 1]) - max(begin, EDGES[n]))
        return -math.expm1(-total)

    @property
    def _version(self) -> int:
        return self._learned + (0 if self._among is None else self._among._version)

    def _hazard(self, n: int) -> float:
        """Return the hazard (returns a second) between EDGES[n] and EDGES[n + 1]."""
        if self._among is None:
            return (self._returns[n] + UNSEEN) / (self._waited[n] + UNSEEN * _middle(n))
        return (self._returns[n] + LIKE_OTHERS) / (self._waited[n] + LIKE_OTHERS / self._among._hazard(n))

    def _forget(self) -> None:
        """Scale all that was learned by one factor: hazards stay the same and new returns weigh more."""
        keep = math.exp(-1.0 / MEMORY)
        self._returns = [keep * returns for returns in self._returns]
        self._waited = [keep * waited for waited in self._waited]

    def _table(self) -> list[float]:
        """Return the seconds expected from every edge on, computed from the horizon backwards after each learning."""
        if self._beyond[0] != self._version:
            beyond = [0.0] * len(EDGES)
            for n in reversed(range(len(EDGES) - 1)):
                beyond[n] = _within(self._hazard(n), EDGES[n + 1] - EDGES[n], beyond[n + 1])
            self._beyond = (self._version, beyond)
        return self._beyond[1]


def _within(hazard: float, seconds: float, beyond: float) -> float:
    """Return the expected seconds: up to `seconds` at this hazard, and `beyond` for pauses that last so long."""
    lasting = math.exp(-hazard * seconds)
    return -math.expm1(-hazard * seconds) / hazard + lasting * beyond


def _interval(seconds: float) -> int:
    return min(bisect_right(EDGES, seconds), len(EDGES) - 1) - 1


def _middle(n: int) -> float:
    return math.sqrt(max(EDGES[n], SHORTEST / 4) * EDGES[n + 1])
