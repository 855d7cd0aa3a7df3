"""Values pooled for a picture: a view draws far fewer cells than an array has numbers, so cells are what is sent."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.limits import Positions, Spelling
from djinn_jupyter.wire.nouns import Noun, StopIdentity, ValueExactness
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest

MOST_CELLS: Final = 1024  # along a side; a screen has hardly more for a card
MOST_CELLS_OF_HEADS: Final = 2**20
MOST_HEADS: Final = 1024
MOST_STRONGEST: Final = 64
Side = Annotated[int, Meta(ge=1, le=MOST_CELLS)]
FewPositions = Annotated[tuple[int, ...], Meta(min_length=1, max_length=MOST_CELLS)]


class PooledHeads(Noun, frozen=True):
    """Heads of a value, each pooled alone, as a view draws them side by side. `cells` are [heads, rows, columns],
    rounded and exact as those of `Pooled` are; `heads` are the numbers of the heads in it, which are the first ones."""

    cells: Array
    heads: tuple[int, ...]
    rows_per_cell: int
    columns_per_cell: int


class Strongest(Noun, frozen=True):
    """The largest entries of each head at the last positions, the largest first and of equal ones the first: `places`
    [positions, heads, entries] are their indices in the head, `values` themselves, to the last bit. There are as many
    as asked for, or as a head has entries."""

    places: Array
    values: Array


class Pooled(Noun, frozen=True):
    """A site's value in the stopped pass as a view draws it, and nothing to compute with; `Snapshot` has the value.

    A cell of `cells`, [rows, columns], is the number of largest magnitude in a block of `rows_per_cell` positions by
    `columns_per_cell` features, heads and features lying one after the other: of a number and its opposite the positive
    one, infinities included, NaN only where there is nothing else. `alone` has a row of columns for each position that
    was asked for so. Either is rounded to bfloat16 where it is pooled and `dtype` has more than 16 bits: a colour shows
    no more. Where each number has a cell of its own, the cells are the numbers. `last` are the numbers of the last
    positions, as many as were asked for, in their own dtype and shape: [positions, ...]. `heads` and `strongest` are
    of a value that has heads, where they were asked for.

    `shape`, `dtype`, `positions`, `lowest`, `highest` (of its finite numbers, None where there are none) and
    `not_finite`, a count, are those of the value itself, to the last bit; with `mean_of_heads` the last three and the
    cells are of the mean over its heads. `stop` is what it was read from.
    """

    site: str
    cells: Array
    rows_per_cell: int
    columns_per_cell: int
    alone: Array | None
    last: Array | None
    mean_of_heads: bool
    axes: str
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    dtype: str
    lowest: float | None
    highest: float | None
    not_finite: int
    stop: StopIdentity
    exactness: ValueExactness
    heads: PooledHeads | None = None
    strongest: Strongest | None = None


class PooledRead(ReplyBase):
    pooled: Pooled


class ReadPooled(SessionRequest[PooledRead], shared="read", browser="asks", resent="anew"):
    """A site's value in the stopped pass, pooled to at most `rows` by `columns` cells. `site`, `positions` and `ahead`
    are as of Inspect. The positions in `alone` are pooled across only, besides; so many at the end as `last` says are
    sent whole, too. `mean_of_heads` pools the mean of the heads of a value that has them.

    `heads` pools each of the first `most_heads` heads alone besides, to so many cells in all of them together; a value
    without heads has none. `strongest` sends so many entries of each head at the last `strongest_at` positions. Cells
    are in the value's own dtype where they are not to be `rounded`, for views that write numbers."""

    site: Spelling | None = None
    positions: Positions | None = None
    ahead: bool = False
    rows: Side = 128
    columns: Side = 128
    alone: FewPositions | None = None
    last: Annotated[int, Meta(ge=0, le=MOST_CELLS)] = 0
    mean_of_heads: bool = False
    heads: Annotated[int, Meta(ge=0, le=MOST_CELLS_OF_HEADS)] = 0
    most_heads: Annotated[int, Meta(ge=1, le=MOST_HEADS)] = MOST_HEADS
    strongest: Annotated[int, Meta(ge=0, le=MOST_STRONGEST)] = 0
    strongest_at: Side = 1
    rounded: bool = True
