"""The measuring loop: sides in turn, the ratio of each round, its median and quartiles. Has no clock of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from djinn_evaluation.intervals import MedianInterval

DECIDING: Final = 6  # readings: of fewer the interval of a median has it with less than 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and quartiles of `count` readings, or in their place the interval of the median."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, readings: Iterable[float]) -> Spread | None:
        """Return the spread; None when there are no readings."""
        values = sorted(readings)
        if not values:
            return None
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(median=statistics.median(values), low=low, high=high, count=len(values))

    @classmethod
    def of_median(cls, readings: Sequence[float]) -> Spread:
        """Return the median and, from DECIDING readings on, the interval that has the true median with probability
        0.95."""
        found = MedianInterval.of(readings)
        return cls(median=found.median, low=found.low, high=found.high, count=found.count)


def in_milliseconds(seconds: Iterable[float]) -> Spread | None:
    return Spread.of(1000 * each for each in seconds)


Readings = dict[str, list[float]]
"""Of every side, one a round."""


def take_turns(
    sides: Mapping[str, Callable[[], float]],
    *,
    rounds: int,
    warm_up: int = 1,
    after: Callable[[Readings], None] = lambda readings: None,
) -> Readings:
    """Return readings of every side, one a round: A B, B A, A B, ... so that a drift of the machine affects all alike.

    A side times itself and returns its reading. `warm_up` rounds come first and are not kept. `after` is given the
    readings so far after each round that is kept, but the last.
    """
    readings: Readings = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            reading = sides[name]()
            if number >= warm_up:
                readings[name].append(reading)
        if warm_up <= number < warm_up + rounds - 1:
            after(readings)
    return readings


def differences(more: Sequence[float], less: Sequence[float], scale: float = 1.0) -> list[float]:
    """Return (more - less) x scale, round by round."""
    return [(a - b) * scale for a, b in zip(more, less, strict=True)]
