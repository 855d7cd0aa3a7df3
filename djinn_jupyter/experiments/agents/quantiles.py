"""Percentiles of agents' turns, with bootstrap intervals over repetitions and agents: the turns of one agent are not
independent, nor are the agents of one repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from djinn_jupyter.experiments.intervals import CONFIDENCE, Verdict

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
    found = {}
    for percent in PERCENTS:

        def reading(chosen: Chosen, at: int = percent) -> float:
            return percentile(_pooled(crowds, chosen), at)

        found[f"p{percent}"] = _interval(crowds, reading, resamples, seed).fields()
    return found


def ratios_of(
    over: Sequence[Crowd], under: Sequence[Crowd], resamples: int, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Return the ratios of two ways' percentiles; agent k of one is agent k of the other, and both are resampled
    together. `lower` is the verdict that the first way's is the lower one: undecided of fewer than six repetitions."""
    found = {}
    for percent in PERCENTS:

        def ratio(chosen: Chosen, at: int = percent) -> float:
            return percentile(_pooled(over, chosen), at) / percentile(_pooled(under, chosen), at)

        interval = _interval(over, ratio, resamples, seed)
        enough = len(over) >= LEAST_REPETITIONS
        found[f"p{percent}"] = {**interval.fields(), "lower": interval.below(1.0) if enough else "undecided"}
    return found


def _interval(
    crowds: Sequence[Crowd], reading: Callable[[Chosen], float], resamples: int, seed: int
) -> BootstrapInterval:
    draw = Random(seed)
    drawn = sorted(reading(_resampled(crowds, draw)) for _ in range(resamples))
    outside = 50 * (1 - CONFIDENCE)
    whole = [(number, agent) for number, crowd in enumerate(crowds) for agent in range(len(crowd))]
    return BootstrapInterval(
        value=reading(whole), low=percentile(drawn, outside), high=percentile(drawn, 100 - outside)
    )


def _resampled(crowds: Sequence[Crowd], draw: Random) -> list[tuple[int, int]]:
    """Draw as many repetitions as there are, and of each as many agents as it has, with replacement."""
    repetitions = draw.choices(range(len(crowds)), k=len(crowds))
    return [
        (number, agent)
        for number in repetitions
        for agent in draw.choices(range(len(crowds[number])), k=len(crowds[number]))
    ]


def _pooled(crowds: Sequence[Crowd], chosen: Chosen) -> list[float]:
    return [reading for number, agent in chosen for reading in crowds[number][agent]]
