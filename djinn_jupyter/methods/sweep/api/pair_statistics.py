"""Statistics of a cell over many pairs: the mean change of the metric, its interval, and its p-value.

A pair's change is its value less the metric of its own corrupted line, so that each pair is its own control. The
interval is a percentile bootstrap over pairs (Efron and Tibshirani 1993), the p-value that of the sign-flip test
(Fisher 1935): how often the mean change is as large, either way, if each pair's could as well have had the other sign.
Neither assumes a distribution. Each cell is judged alone: of a thousand cells without effect about fifty have p below
0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.frames import Tabular
from djinn_jupyter.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

FEWEST: Final = 5  # pairs that an interval is drawn from: of fewer the bounds are little more than the pairs themselves
NO_INTERVAL: Final = f"no interval: it is drawn from {FEWEST} pairs or more"
EXACT: Final = 13  # pairs up to which all 2^n signs are tried
AT_ONCE: Final = 2**22  # numbers of one product of draws and cells
SLACK: Final = 1e-12  # of the observed mean: the same numbers in another order sum to another last bit


@dataclass(frozen=True, kw_only=True, eq=False)
class PairStatistics(Tabular):
    """Arrays with an axis for each of the grid's but the pairs: `mean` of the values, mean `change` from the corrupted
    lines, its `standard_error`, the bounds `low` and `high` of its interval, its `p`-value, and how many `pairs` each
    is from. NaN where fewer than two pairs have the cell; `low` and `high` also where fewer than five have it."""

    mean: Matrix
    change: Matrix
    standard_error: Matrix
    low: Matrix
    high: Matrix
    p: Matrix
    pairs: np.ndarray[Any, Any]
    confidence: float
    resamples: int
    seed: int

    def columns(self) -> dict[str, list[Any]]:
        """Return each array as a list, cell by cell."""
        named = ("mean", "change", "standard_error", "low", "high", "p", "pairs")
        return {name: getattr(self, name).reshape(-1).tolist() for name in named}


def statistics_of(values: Matrix, corrupted: Matrix, confidence: float, resamples: int, seed: int) -> PairStatistics:
    """Return the statistics of values [pair, ...]; `corrupted` has the first axes of these. Raises UsageError."""
    import numpy as np

    if not 0 < confidence < 1 or resamples < 100:
        raise UsageError("An interval has a confidence between 0 and 1, such as 0.95, and at least 100 resamples.")
    if len(values) < 2:
        raise UsageError("Statistics are over pairs: give two or more pairs of lines, as lists.")
    shape, flat = values.shape[1:], values.reshape(len(values), -1)
    own = corrupted.reshape(*corrupted.shape, *[1] * (values.ndim - corrupted.ndim))
    changes = (values - own).reshape(flat.shape)
    found = np.full((7, flat.shape[1]), np.nan)
    known = ~np.isnan(changes)
    for pattern in np.unique(known, axis=1).T:  # a sweep that ended early has its last pair in part
        if pattern.sum() < 2:
            continue
        cells = (known == pattern[:, None]).all(0)
        of_these = changes[np.ix_(pattern, cells)]
        found[0, cells] = flat[np.ix_(pattern, cells)].mean(0)
        found[1, cells] = of_these.mean(0)
        found[2, cells] = of_these.std(0, ddof=1) / np.sqrt(len(of_these))
        if len(of_these) >= FEWEST:
            found[3:5, cells] = _interval(of_these, confidence, resamples, np.random.default_rng(seed))
        found[5, cells] = _p(of_these, resamples, np.random.default_rng(seed))
    named = ("mean", "change", "standard_error", "low", "high", "p")
    arrays = {name: row.reshape(shape) for name, row in zip(named, found, strict=False)}
    pairs = known.sum(0).reshape(shape)
    return PairStatistics(**arrays, pairs=pairs, confidence=confidence, resamples=resamples, seed=seed)


def _interval(changes: Matrix, confidence: float, resamples: int, random: np.random.Generator) -> Matrix:
    """Return the bounds [2, cells] between which the means of resampled pairs lie."""
    import numpy as np

    count = len(changes)
    weights = random.multinomial(count, [1 / count] * count, size=resamples) / count
    sides = [(1 - confidence) / 2, (1 + confidence) / 2]
    return np.concatenate([np.quantile(weights @ some, sides, axis=0) for some in _parts(changes, resamples)], axis=1)


def _p(changes: Matrix, resamples: int, random: np.random.Generator) -> Matrix:
    """Return the p-values [cells] of means that are not 0: of all signs where pairs are few, else of drawn ones."""
    import numpy as np

    count = len(changes)
    exact = count <= EXACT
    drawn = list(product((-1.0, 1.0), repeat=count)) if exact else random.choice((-1.0, 1.0), (resamples, count))
    signs = np.asarray(drawn) / count
    found = []
    for some in _parts(changes, len(signs)):
        as_large = (np.abs(signs @ some) >= np.abs(some.mean(0)) * (1 - SLACK)).sum(0)
        found.append(as_large / len(signs) if exact else (as_large + 1) / (len(signs) + 1))
    return np.concatenate(found)


def _parts(changes: Matrix, draws: int) -> list[Matrix]:
    """Return the cells in parts whose product with the draws is no larger than AT_ONCE."""
    step = max(1, AT_ONCE // draws)
    return [changes[:, first : first + step] for first in range(0, changes.shape[1], step)]
