"""Intervals of medians by order statistics and of percentiles by the bootstrap, and the verdicts that they allow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from random import Random
from typing import Any, Final, Literal

CONFIDENCE: Final = 0.95
Verdict = Literal["holds", "refuted", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """A median, and two of the readings that the true median lies between with the probability `confidence`: at least
    0.95 from six readings on; of fewer they are the least and the largest, and the probability is lower."""

    median: float
    low: float
    high: float
    count: int
    confidence: float

    @classmethod
    def of(cls, readings: Sequence[float]) -> MedianInterval:
        """Return the interval by order statistics, which assumes no distribution. ValueError without a reading."""
        values = sorted(readings)
        outside = _readings_outside(len(values))
        return cls(
            median=statistics.median(values),
            low=values[outside],
            high=values[len(values) - 1 - outside],
            count=len(values),
            confidence=_confidence(len(values), outside),
        )

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def at_least(self, bar: float, *, over_ran: float = 1.0, under_ran: float = 1.0) -> Verdict:
        """Return whether the median reaches the bar: undecided where the interval has the bar inside, and of fewer
        than six readings. Of a ratio of times, `over_ran` and `under_ran` are the shares of its time for which each
        side had a core: what waiting for one could have turned is undecided too."""
        if self.confidence < CONFIDENCE:
            return "undecided"
        if self.low * over_ran >= bar:
            return "holds"
        return "refuted" if self.high < bar * under_ran else "undecided"


def _readings_outside(count: int) -> int:
    """Return the largest number of readings to omit at either end that keeps the confidence."""
    kept = takewhile(lambda beyond: 1 - 2 * beyond / 2**count >= CONFIDENCE, _orders_beyond(count))
    return min(max(sum(1 for _ in kept) - 1, 0), (count - 1) // 2)


def _confidence(count: int, outside: int) -> float:
    """Return the probability that the median is among the readings left in; each is above it with one half."""
    beyond = next(islice(_orders_beyond(count), outside, None))
    found: float = 1 - 2 * beyond / 2**count
    return max(0.0, found)


def _orders_beyond(count: int) -> Iterator[int]:
    """Yield in how many of the 2 ** count orders at most 0, 1, 2, ... readings are below the true median."""
    term = beyond = 1
    for below in range(1, count + 1):
        yield beyond
        term = term * (count - below + 1) // below
        beyond += term


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return over / under, repetition by repetition."""
    return [a / b for a, b in zip(over, under, strict=True)]


PERCENTS = (50, 90, 99)
LEAST_REPETITIONS = 6  # for a verdict: of fewer, the machine's other work may be all of a difference
Crowd = Sequence[Sequence[float]]  # the readings of each agent of a repetition
Chosen = Sequence[tuple[int, int]]  # repetition and agent


def percentile(readings: Sequence[float], percent: float) -> float:
    """Return the percentile by linear interpolation between the order statistics. ValueError without a reading."""
    if not readings:
        raise ValueError("There is no percentile of no readings.")
    values = sorted(readings)
    place = (len(values) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapInterval:
    """A value, and the interval that 95 % of the resamples lie in."""

    value: float
    low: float
    high: float

    def fields(self) -> dict[str, float]:
        return asdict(self)

    def below(self, bar: float) -> Verdict:
        """Return whether the value is below the bar: undecided where the interval has the bar inside."""
        if self.low <= bar <= self.high:
            return "undecided"
        return "holds" if self.high < bar else "refuted"


def of_agents(crowds: Sequence[Crowd], resamples: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return p50, p90 and p99 over all agents' turns, each with its interval."""
    intervals = _intervals(crowds, lambda chosen: _percentiles(crowds, chosen), resamples, seed)
    return {name: interval.fields() for name, interval in intervals.items()}


def ratios_of(
    over: Sequence[Crowd], under: Sequence[Crowd], resamples: int, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Return the ratios of two ways' percentiles; agent k of one is agent k of the other, and both are resampled
    together. `lower` is the verdict that the first way's is the lower one: undecided of fewer than six repetitions."""

    def read(chosen: Chosen) -> list[float]:
        return [a / b for a, b in zip(_percentiles(over, chosen), _percentiles(under, chosen), strict=True)]

    enough = len(over) >= LEAST_REPETITIONS
    return {
        name: {**interval.fields(), "lower": interval.below(1.0) if enough else "undecided"}
        for name, interval in _intervals(over, read, resamples, seed).items()
    }


def _intervals(
    crowds: Sequence[Crowd], read: Callable[[Chosen], list[float]], resamples: int, seed: int
) -> dict[str, BootstrapInterval]:
    """Return the interval of each percentile that `read` gives, all of them from the same resamples."""
    draw, outside = Random(seed), 50 * (1 - CONFIDENCE)
    drawn = zip(*(read(_resampled(crowds, draw)) for _ in range(resamples)), strict=True)
    whole = read([(number, agent) for number, crowd in enumerate(crowds) for agent in range(len(crowd))])
    return {
        f"p{percent}": BootstrapInterval(
            value=value, low=percentile(column, outside), high=percentile(column, 100 - outside)
        )
        for percent, value, column in zip(PERCENTS, whole, drawn, strict=True)
    }


def _resampled(crowds: Sequence[Crowd], draw: Random) -> list[tuple[int, int]]:
    """Resample repetitions, and the agents of each, with replacement."""
    repetitions = draw.choices(range(len(crowds)), k=len(crowds))
    return [
        (number, agent)
        for number in repetitions
        for agent in draw.choices(range(len(crowds[number])), k=len(crowds[number]))
    ]


def _percentiles(crowds: Sequence[Crowd], chosen: Chosen) -> list[float]:
    pooled = sorted(reading for number, agent in chosen for reading in crowds[number][agent])
    return [percentile(pooled, percent) for percent in PERCENTS]
