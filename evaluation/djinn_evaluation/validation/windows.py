"""Bytes per window of wall time: the only figure that sees a link which idles between two fast copies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

SECONDS = 0.05  # of a window


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBytes:
    """One copy: `begun` in seconds since the epoch."""

    begun: float
    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A time in which passes ran, in seconds since the epoch."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def window_rates(copies: Iterable[MovedBytes], spans: Sequence[TimeSpan], seconds: float = SECONDS) -> list[float]:
    """Return the bytes a second of each whole window of the spans, which are laid end to end. Copies run one after the
    other, each at one speed; what moves between two spans is in no window."""
    edges = np.cumsum([0.0, *(span.seconds for span in spans)])
    moved = _moved_by(copies, spans, edges)
    count = int(edges[-1] / seconds + 1e-9)
    at = np.interp(np.arange(count + 1) * seconds, *moved)
    return [float(rate) for rate in np.diff(at) / seconds]


def sustained(rates: Sequence[float], ratio: float) -> float:
    """Return the rate that the share `ratio` of them reached."""
    count = max(1, math.ceil(ratio * len(rates) - 1e-9))
    return sorted(rates, reverse=True)[count - 1]


def _moved_by(
    copies: Iterable[MovedBytes], spans: Sequence[TimeSpan], edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the spans' own time, and the bytes that had moved in it by then."""
    times, totals = _whole(copies)
    moments, sums, before = [0.0], [0.0], 0.0
    for span, edge in zip(spans, edges, strict=False):
        inside = times[(times > span.begun) & (times < span.ended)]
        points = np.concatenate(([span.begun], inside, [span.ended]))
        moved = np.interp(points, times, totals)
        moments += list(edge + points - span.begun)
        sums += list(before + moved - moved[0])
        before = sums[-1]
    return np.array(moments), np.array(sums)


def _whole(copies: Iterable[MovedBytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments at which copies began and ended, and the bytes that had moved by then."""
    times, totals = [0.0], [0.0]
    for copy in sorted(copies, key=lambda copy: copy.begun):
        begun = max(times[-1], copy.begun)  # clocks may let two that follow each other overlap by a hair
        times += [begun, max(begun, copy.begun + copy.seconds)]
        totals += [totals[-1], totals[-1] + copy.nbytes]
    return np.array(times), np.array(totals)
