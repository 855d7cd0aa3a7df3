"""The median of repetitions with its confidence interval, and the verdict that an interval allows. Has no clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
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
    """Return how many readings to leave out at either end, the most that keep the confidence."""
    kept = takewhile(lambda beyond: 1 - 2 * beyond / 2**count >= CONFIDENCE, _orders_beyond(count))
    return min(max(sum(1 for _ in kept) - 1, 0), (count - 1) // 2)


def _confidence(count: int, outside: int) -> float:
    """Return the probability that the true median is between the readings left in; each is above it with probability
    one half."""
    beyond = next(islice(_orders_beyond(count), outside, None))
    found: float = 1 - 2 * beyond / 2**count
    return max(0.0, found)


def _orders_beyond(count: int) -> Iterator[int]:
    """Yield in how many of the 2 ** count orders at most 0, 1, 2, ... readings are below the true median. Linear: a
    flatline has thousands of readings."""
    term = beyond = 1
    for below in range(1, count + 1):
        yield beyond
        term = term * (count - below + 1) // below
        beyond += term


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return over / under, repetition by repetition."""
    return [a / b for a, b in zip(over, under, strict=True)]
