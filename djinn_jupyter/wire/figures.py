"""Figures of a stopped value, and of two, computed where the values are: views write numbers, and fetch no arrays for
them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.limits import Positions, SessionName, Spelling
from djinn_jupyter.wire.nouns import Noun, StopIdentity, ValueExactness
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest


class Figures(Noun, frozen=True):
    """Mean, standard deviation (over all, not one less), lowest, highest and L2 norm of numbers, computed in float64.
    Each is NaN where a number is, and infinite or NaN as the arithmetic has it where one is infinite."""

    mean: float
    std: float
    lowest: float
    highest: float
    norm: float


class FiguresRead(ReplyBase):
    """`all` are the figures of the value, `each` those of its positions: float64 [positions, 5], in the order of
    `Figures`. The rest is as in Snapshot, without the value, whose shape is `shape`."""

    stop: StopIdentity
    site: str
    shape: tuple[int, ...]
    axes: str
    dtype: str
    positions: tuple[int, ...]
    exactness: ValueExactness
    all: Figures
    each: Array | None


class ReadFigures(SessionRequest[FiguresRead], shared="read", changes=False):
    """Figures of a site's value in the stopped pass. `site` and `positions` are as of Inspect; `each` asks for those of
    every position besides."""

    site: Spelling | None = None
    positions: Positions | None = None
    each: bool = False


class LargestDifference(Noun, frozen=True):
    """The largest |b - a| of finite numbers, in float64, and the first place that has it: the position of the pass and
    the indices of all axes after it, a selected head or feature by its own number. `a` and `b` are the numbers
    there."""

    difference: float
    position: int
    index: tuple[int, ...]
    a: float
    b: float


class Apart(Noun, frozen=True):
    """The distance of two values of one shape at the positions that both passes have, in float64 and over all of their
    numbers. `differing` counts pairs that are not the same number (NaN is the same as NaN), `not_finite` those
    of them that have a number that is not finite; `largest` is of the others, None where no finite pair differs.

    `distances` are |b - a| / |a| at the last of `positions`, as many as were asked for, without pairs that are not
    finite; None where |a| is zero."""

    positions: tuple[int, ...]
    numbers: int
    differing: int
    not_finite: int
    largest: LargestDifference | None
    distances: tuple[float | None, ...]


class Compared(ReplyBase):
    """`apart` is None where the passes share no position, or where their values have other shapes at one."""

    site: str
    stops: tuple[StopIdentity, StopIdentity]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    apart: Apart | None


class Compare(SessionRequest[Compared], shared="read", changes=False, without_rows=True):
    """The stopped value of `session` (a) against that of `other` (b), which stands at the same site. The distances of
    the `last` shared positions are sent."""

    other: SessionName
    last: Annotated[int, Meta(ge=1, le=1024)] = 12
