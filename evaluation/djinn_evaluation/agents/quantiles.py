"""Percentiles of agents' turns, with bootstrap intervals over repetitions and agents: the turns of one agent are not
independent, nor are the agents of one repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from djinn_evaluation.intervals import CONFIDENCE, Verdict

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
    """Draw as many repetitions as there are, and of each as many agents as it has, with replacement."""
    repetitions = draw.choices(range(len(crowds)), k=len(crowds))
    return [
        (number, agent)
        for number in repetitions
        for agent in draw.choices(range(len(crowds[number])), k=len(crowds[number]))
    ]


def _percentiles(crowds: Sequence[Crowd], chosen: Chosen) -> list[float]:
    pooled = sorted(reading for number, agent in chosen for reading in crowds[number][agent])
    return [percentile(pooled, percent) for percent in PERCENTS]
