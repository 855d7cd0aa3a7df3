"""Readings of a stop: the influences on it, and the effect of its edits on the next token. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol

from msgspec import Meta

from djinn_jupyter.wire import nouns
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import OwnName, ReplyBase
from djinn_jupyter.wire.nouns import Noun, Origin, PassesMeant, StopDescription, StopIdentity, TopToken, ValueExactness
from djinn_jupyter.wire.request_base import Positions, RequestBase, SessionName, SessionRequest, Spelling

Applies = Literal[
    "applied", "ahead", "next pass", "other positions", "other passes", "condition", "refused", "not so far", "off"
]


class Change(Noun, frozen=True):
    """The change of a value by an edit (`rule` is None) or a steering rule, in words. `relative_size` is
    |after - before| / |before| of the part it touched; None where that part was zero, or where it was not measured."""

    what: str
    rule: int | None = None
    relative_size: float | None = None


class Override(Noun, frozen=True):
    """A value of the stopped pass that differs from the model's own, with its causes in order. `changes` is empty in a
    session in which they were not recorded."""

    site: str
    changes: tuple[Change, ...]


class RuleAtStop(Noun, frozen=True):
    """A steering rule of the session. `applies`: whether it was `applied` in the stopped pass, lies `ahead` of the
    stop, was set after the pass had gone by (`next pass`), names `other positions` or `other passes` (of the prompt, of
    new tokens), has a `condition` that was nowhere true, was `refused` by a value that it does not fit (`trouble` has
    the reason), was `not so far` reached within the layer of the stop, or is `off`. `relative_size` is its size in the
    stopped pass, at its first site. A rule that is not `enabled` was `applied` where it was turned off after the pass
    had gone by."""

    number: int
    site: str
    what: str
    applies: Applies
    relative_size: float | None = None
    enabled: bool = True
    trouble: str | None = None


class EditAtStop(Noun, frozen=True):
    """An edit made at the stop itself; one that is not `enabled` has no part in the value. Its number counts the edits
    of the stop from 1. `relative_size` is |after - before| / |before| of the changed part when it was last applied;
    None where that part was zero."""

    number: int
    site: str
    what: str
    relative_size: float | None = None
    enabled: bool = True


class EarlierPasses(Noun, frozen=True):
    """Positions [start, end) that were fed under rules or with edits: their keys and values, and the tokens sampled
    after them, are not the model's own."""

    start: int
    end: int
    changes: tuple[str, ...]


class Influences(Noun, frozen=True):
    """All differences of a stop from the unmodified model, and the edits and rules that are off. `adapter` is the
    session's adapter."""

    rules: tuple[RuleAtStop, ...] = ()
    overrides: tuple[Override, ...] = ()
    earlier: tuple[EarlierPasses, ...] = ()
    edits: tuple[EditAtStop, ...] = ()
    adapter: str | None = None


class Branch(Noun, frozen=True):
    """The stops of one session, oldest first. `present` is the index of the present one, None while it runs or after it
    finished; `state` says which. Stops shared with another session have the same numbers there. `dropped` older ones
    are no longer kept, or not sent: a tree has some ten thousand. `tokens` and `text`: the length of its token
    sequence, and its last tokens as text."""

    session: OwnName
    state: nouns.SessionState
    stops: tuple[StopDescription, ...]
    present: int | None
    tokens: int
    text: str
    forked_from: Origin | None = None
    stop: StopIdentity | None = None
    dropped: int = 0


class Contribution(Noun, frozen=True):
    """The part of a logit (or of a difference of two) that one module's output, or one head of it, adds."""

    point: str
    layer: int
    head: int | None
    value: float


class ScorePart(Noun, frozen=True):
    """The part of a score that one earlier output adds at the query's or the key's position: that of a `point` of a
    `layer` (None for the embeddings), of one head or feature where `unit` is given."""

    point: str
    layer: int | None
    unit: int | None
    value: float


class ScoreSide(Noun, frozen=True):
    """A score as a sum over what one of its two positions holds, with the other one fixed. `parts`, the `constant` (the
    biases of norm and map) and the `rest` (rules, rounding) sum to it."""

    parts: tuple[ScorePart, ...]
    constant: float
    rest: float


class NeuronParts(Noun, frozen=True):
    """The parts that the neurons of one layer's MLP add, float64 [neurons]: each through the MLP's last map."""

    layer: int
    values: Array


class TokenShift(Noun, frozen=True):
    """One token of the next-token distribution without (`before`) and with (`after`) the edits of the stop."""

    token: int
    text: str
    probability_before: float
    probability_after: float
    logit_before: float
    logit_after: float


class EffectReading(Noun, frozen=True):
    """The next-token distribution without and with the edits of the present stop. `kl` in nats, KL(with || without).
    `shifts` are the tokens of either head, the most probable with the edits first; `chosen` the requested ones."""

    before: tuple[TopToken, ...]
    after: tuple[TopToken, ...]
    kl: float
    top1_changed: bool
    logit_difference_norm: float
    shifts: tuple[TokenShift, ...] = ()
    chosen: tuple[TokenShift, ...] = ()


PASSES: Final[Mapping[PassesMeant, str]] = {"prompt": "in the prompt", "new": "at new tokens"}


def at_positions(positions: Sequence[int]) -> str:
    """Return `position 4`, `positions 0-4`"""
    return f"position{'' if len(positions) == 1 else 's'} {spans(positions)}"


class Limited(Protocol):
    """A steering rule on either side of the wire."""

    @property
    def positions(self) -> tuple[int, ...] | None: ...
    @property
    def onward(self) -> int | None: ...
    @property
    def on(self) -> PassesMeant | None: ...
    @property
    def when(self) -> str | None: ...


def limits_of(rule: Limited) -> tuple[str, ...]:
    """Spell where and when a rule applies: `position 4`, `from position 5 on`, `in the prompt`, `when norm > 40`."""
    said = [] if rule.positions is None else [at_positions(rule.positions)]
    said += [] if rule.onward is None else [f"from position {rule.onward} on"]
    said += [] if rule.on is None else [PASSES[rule.on]]
    said += [] if rule.when is None else [f"when {rule.when}"]
    return tuple(said)


def spans(numbers: Sequence[int]) -> str:
    """Return `0-4`, `3`, `0, 2, 5-7`: consecutive numbers as one range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class History(ReplyBase):
    stops: tuple[StopDescription, ...]
    present: int | None


class Tree(ReplyBase):
    """One branch for each session, in the order of opening: a fork after its parent, if that still exists."""

    branches: tuple[Branch, ...]


class ReadHistory(SessionRequest[History], shared="read", browser="asks", resent="anew", while_running=True): ...


class ReadTree(RequestBase[Tree], browser="asks", resent="anew"):
    """The stops of all sessions, and the forks that share them."""


# Figures of a stopped value, and of two, computed where the values are: views write numbers, and fetch no arrays for
# them.


class Figures(Noun, frozen=True):
    """Mean, standard deviation (population), lowest, highest and L2 norm of numbers, computed in float64. Each is NaN
    where a number is NaN, and follows the arithmetic where one is infinite."""

    mean: float
    std: float
    lowest: float
    highest: float
    norm: float


class FiguresRead(ReplyBase):
    """`all` are the figures of the value, `each` those of its positions: float64 [positions, 5], in the order of
    `Figures`. The other fields are as in Snapshot, without the value, whose shape is `shape`."""

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
    """Figures of a site's value in the stopped pass. `site` and `positions` are as in Inspect; `each` adds the figures
    of every position."""

    site: Spelling | None = None
    positions: Positions | None = None
    each: bool = False


class LargestDifference(Noun, frozen=True):
    """The largest |b - a| of finite numbers, in float64, and its first place: the position of the pass and the indices
    of all axes after it, a selected head or feature by its own number. `a` and `b` are the numbers there."""

    difference: float
    position: int
    index: tuple[int, ...]
    a: float
    b: float


class Apart(Noun, frozen=True):
    """The distance of two values of one shape at the positions that both passes have, in float64 and over all of their
    numbers. `differing` counts pairs of different numbers (NaN equals NaN), `not_finite` those of them with a number
    that is not finite; `largest` is the largest of the others, None where no finite pair differs.

    `distances` are |b - a| / |a| at the last of `positions`, as many as requested, without pairs that are not finite;
    None where |a| is zero."""

    positions: tuple[int, ...]
    numbers: int
    differing: int
    not_finite: int
    largest: LargestDifference | None
    distances: tuple[float | None, ...]


class Compared(ReplyBase):
    """`apart` is None where the passes share no position, or where their values have different shapes at one."""

    site: str
    stops: tuple[StopIdentity, StopIdentity]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    apart: Apart | None


class Compare(SessionRequest[Compared], shared="read", changes=False, without_rows=True):
    """Compare the stopped value of `session` (a) with the one of `other` (b), which is stopped at the same site. The
    distances of the `last` shared positions are sent."""

    other: SessionName
    last: Annotated[int, Meta(ge=1, le=1024)] = 12


MOST_CELLS: Final = 1024  # along a side; a screen has hardly more for a card
MOST_CELLS_OF_HEADS: Final = 2**20
MOST_HEADS: Final = 1024
MOST_STRONGEST: Final = 64
Side = Annotated[int, Meta(ge=1, le=MOST_CELLS)]
FewPositions = Annotated[tuple[int, ...], Meta(min_length=1, max_length=MOST_CELLS)]


class PooledHeads(Noun, frozen=True):
    """Heads of a value, each pooled alone, for pictures side by side. `cells` are [heads, rows, columns], rounded and
    exact as in `Pooled`; `heads` are the numbers of its heads, the first ones."""

    cells: Array
    heads: tuple[int, ...]
    rows_per_cell: int
    columns_per_cell: int


class Strongest(Noun, frozen=True):
    """The largest entries of each head at the last positions, the largest first and of equal ones the first: `places`
    [positions, heads, entries] are their indices in the head, `values` the entries, exact. There are as many as
    requested, or as a head has entries."""

    places: Array
    values: Array


class Pooled(Noun, frozen=True):
    """A site's value in the stopped pass for drawing, not for computing; `Snapshot` has the value.

    A cell of `cells`, [rows, columns], is the number of largest magnitude in a block of `rows_per_cell` positions by
    `columns_per_cell` features, with heads and features flattened. Of a number and its opposite the positive one is
    taken; infinities count; NaN only where there is nothing else. `alone` has a row of columns for each position
    requested in `alone`. Pooled cells are rounded to bfloat16 where `dtype` has more than 16 bits: a colour shows no
    more. Where each number has a cell of its own, the cells are the numbers. `last` are the numbers of the last
    positions, as many as requested, in their own dtype and shape: [positions, ...]. `heads` and `strongest` are for a
    value with heads, where requested.

    `shape`, `dtype`, `positions`, `lowest`, `highest` (of its finite numbers, None where there are none) and
    `not_finite`, a count, describe the value itself, exactly; with `mean_of_heads` the last three and the cells
    describe the mean over its heads. `stop` is its source.
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
    are as in Inspect. The positions in `alone` are also pooled across features only, each in its own row; the `last`
    positions are also sent whole. `mean_of_heads` pools the mean of the heads of a value that has them.

    `heads` also pools each of the first `most_heads` heads alone, to so many cells altogether; a value without heads
    has none. `strongest` sends so many entries of each head at the last `strongest_at` positions. Cells have the
    value's own dtype unless `rounded`, for views that write numbers."""

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
