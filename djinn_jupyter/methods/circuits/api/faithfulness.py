"""The faithfulness of a circuit over pairs, and its interval. Asks nothing of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.pair_statistics import FEWEST

if TYPE_CHECKING:
    import numpy as np

    Row = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A percentile bootstrap over pairs (Efron and Tibshirani 1993), drawn by a seed."""

    confidence: float
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1 or self.resamples < 100:
            raise UsageError("An interval has a confidence between 0 and 1, such as 0.95, and at least 100 resamples.")


def faithfulness_of(
    values: Row, corrupted: Row, clean: Row, interval: Interval
) -> tuple[float, tuple[float, float] | None]:
    """Return the mean of `values` as a share of the way between the mean metrics of the lines, and its bounds where
    there are `FEWEST` pairs to draw from. A resample whose lines have the same mean metric has no share, and is left
    out; NaN where all are so."""
    import numpy as np

    made, way = (values - corrupted).mean(), (clean - corrupted).mean()
    share = float(made / way) if way else float("nan")
    if len(values) < FEWEST:
        return share, None
    drawn = np.random.default_rng(interval.seed).integers(0, len(values), (interval.resamples, len(values)))
    ways = (clean - corrupted)[drawn].mean(axis=1)
    shares = (values - corrupted)[drawn].mean(axis=1)[ways != 0] / ways[ways != 0]
    if not len(shares):
        return share, (float("nan"), float("nan"))
    outside = (1 - interval.confidence) / 2
    low, high = np.quantile(shares, [outside, 1 - outside])
    return share, (float(low), float(high))
