"""A sweep: one edit at many places of one token sequence, and a metric of the logits of each."""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal

import msgspec
from msgspec import Meta

from djinn_jupyter.wire import arrays, edits, greeting, nouns, provenance, running
from djinn_jupyter.wire.base import EventBase, Frozen, ReplyBase, bounded_by
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity
from djinn_jupyter.wire.request_base import OwnName, Positions, R, SessionRequest, SomeTokens, Spelling

MOST_STEPS: Final = 1000  # of integrated gradients
MOST_PLANNED: Final = 65_536  # pairs of a plan of calls
MOST_CHOSEN: Final = 65_536  # cells of a sweep of some
MOST_CELLS: Final = 1_000_000

Correction = Literal["attention", "cancellation"]
Axis = Literal["point", "layer", "position", "head", "neuron", "coef"]
Place = int | float | str
NamedPosition = int | Spelling  # a token by its text
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
LineSource = SomeTokens | OwnName
EditedLine = Literal["corrupted", "clean"]


def source_of(edited: EditedLine) -> EditedLine:
    """Return the tokens of a pair whose values are put into the `edited` ones."""
    return "clean" if edited == "corrupted" else "corrupted"


class Mean(edits.EditBase, frozen=True):
    """The mean over the positions of the clean tokens, or without those of the edited ones."""


class Resample(edits.EditBase, frozen=True):
    """The value at another position of the clean tokens, or without those of the edited ones; drawn by the seed."""


class Noise(Frozen, frozen=True):
    """Normal noise on the input of the first layer at `positions`, of `scale` times the standard deviation there; drawn
    by the sweep's seed."""

    positions: Positions
    scale: Annotated[float, Meta(gt=0)] = 3.0


SweptEdit = edits.Edit | Mean | Resample


class Continued(Frozen, frozen=True):
    """An incomplete sweep: these cells of the sweep of this `recipe` have `values`, one for each metric."""

    recipe: Annotated[str, Meta(max_length=64)]
    cells: Annotated[tuple[int, ...], bounded_by("cells", MOST_CELLS)]
    values: Annotated[
        tuple[Annotated[tuple[float, ...], Meta(max_length=running.MOST_METRICS)], ...], bounded_by("cells", MOST_CELLS)
    ]


class Estimate(Frozen, frozen=True):
    """Estimate each cell's change of the metric by gradients, to first order: the change at its places times the
    metric's gradient there, on the corrupted tokens, or as the mean over `steps` points on the path to the clean ones.
    With the correction "attention" queries and keys are estimated from attention's output, with "cancellation" a score
    is the mean magnitude over gradients that each bypass one layer (both of AtP*)."""

    steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 1
    corrections: Annotated[tuple[Correction, ...], Meta(max_length=2)] = ()


class Recipe(Frozen, frozen=True):
    """Everything needed to compute the cells again: the request, with tokens in place of sessions and without continued
    cells, the `attention` of the named sessions (None for the engine's own), their `adapter`, the added `modules` of
    its sites, and the origin. `kept` cells were computed before, in other passes."""

    asked: Sweep
    attention: nouns.AttentionName | None
    by: provenance.Provenance
    adapter: AdapterIdentity | None = None
    kept: int = 0
    modules: tuple[ModuleIdentity, ...] = ()


class Measured(Frozen, frozen=True):
    """One metric of a sweep's cells. `values` is float64, with an axis for each of `over`; `corrupted` is the metric of
    the corrupted tokens without an edit, `clean` that of the clean ones. `largest_difference` is the largest difference
    between cells computed together and alone, for the rechecked ones; None where each was computed alone."""

    metric: str
    values: arrays.Array
    corrupted: float
    clean: float | None
    largest_difference: float | None
    tolerance: float


class Confirmed(Frozen, frozen=True):
    """Cells of an estimate that an exact sweep computed too: the change of each metric there."""

    cells: tuple[int, ...]
    changes: tuple[tuple[float, ...], ...]


class Swept(ReplyBase):
    """`measured` has each metric, in the order of the request. `places` are those along each axis of `over`, which has
    every axis twice where cells are pairs of cells; `texts` are the edited tokens' texts. `computed` cells were
    computed; in the others the edit changes nothing. Cells numbered `rechecked` (row by row) were computed again alone,
    including for the first pair one where the edit changes nothing; there are none where each was computed alone
    anyway, as `mode` then shows. `recipe` identifies a sweep that continues this one, and `made` is everything needed
    to compute the cells again. With an `estimate` the values are changes, of which the client has some `confirmed`."""

    site: str
    over: tuple[Axis, ...]
    places: tuple[tuple[Place, ...], ...]
    texts: tuple[str, ...]
    edit: str
    measured: tuple[Measured, ...]
    mode: nouns.Mode
    seed: int
    computed: int
    rechecked: tuple[int, ...]
    notes: tuple[str, ...] = ()
    windows: tuple[tuple[Axis, int], ...] = ()
    in_pairs: bool = False
    receivers: tuple[str, ...] = ()
    into: EditedLine = "corrupted"
    recipe: str = ""
    estimate: Estimate | None = None
    made: Recipe | None = None
    confirmed: Confirmed | None = None


class SweepFields(SessionRequest[R], Generic[R]):
    """The fields of a sweep, and of the question whether one would begin."""

    corrupted: LineSource
    site: Spelling
    over: Annotated[tuple[Axis, ...], Meta(max_length=4)]
    metrics: Annotated[tuple[Spelling, ...], Meta(min_length=1, max_length=running.MOST_METRICS)]
    clean: LineSource | None = None
    edit: SweptEdit | None = None
    noise: Noise | None = None
    coefs: Annotated[tuple[float, ...], Meta(max_length=4096)] = ()
    positions: Annotated[tuple[NamedPosition, ...], bounded_by("positions")] = ()
    align: Annotated[tuple[tuple[NamedPosition, NamedPosition], ...], bounded_by("positions")] = ()
    windows: Annotated[tuple[tuple[Axis, Annotated[int, Meta(ge=1)]], ...], Meta(max_length=6)] = ()
    in_pairs: bool = False
    mode: nouns.Mode = "fast"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    receivers: Annotated[tuple[Spelling, ...], Meta(max_length=1024)] = ()
    into: EditedLine = "corrupted"
    pair: Annotated[int, Meta(ge=0)] = 0
    continued: Continued | None = None
    estimate: Estimate | None = None
    chosen: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MOST_CHOSEN)] = ()
    calls: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_PLANNED)] = ()


class Sweep(SweepFields[Swept], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Edit the tokens `corrupted` at every cell of `over`, one cell at a time, and read `metrics` at their last
    position. Both `clean` and `corrupted` are tokens, or the name of the session that has them. Without an `edit` a
    cell gets the value of `clean` there. `site` names a point, and a layer where `over` does not. The session itself
    must be empty; the sweep computes in its memory, and closing it ends the sweep. `noise` is added to `corrupted`
    before the sweep. Over "coef" the edit has each of `coefs` as its factor or coefficient. A cell edits as many layers
    or positions together as `windows` says, from its own on; with `in_pairs`, each cell is a pair of cells. If
    `positions` are given, only these are edited; or those of `align`, each with the corresponding position of the clean
    tokens. `fast` computes many cells in one pass and recomputes some, chosen by `seed`, alone; `exact` computes each
    alone. Of the first `pair` of lines of a sweep several cells are recomputed, of each later one a single cell. With
    `receivers` a cell is a path: only these sites see the edit, past unchanged blocks; `over` may be empty then. `into`
    "clean" puts the values of the corrupted tokens into the clean ones. `continued` cells are reused, except for those
    that are recomputed. With an `estimate` no cell is computed: gradients estimate its change, without noise, `coefs`,
    `receivers` and `continued` cells. With `chosen` cells, numbered row by row, only these are computed, and the others
    are NaN. `calls` are the most rows of each call of a layer, in turn, as (rows, calls), for a repeated sweep."""


class CheckSweep(SweepFields[greeting.Checked], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Refuse what a Sweep of the same fields would be refused for before it computes. Nothing is begun."""

    @property
    def asked(self) -> Sweep:
        """The sweep, of which an engine makes its recipe."""
        return Sweep(**msgspec.structs.asdict(self))


class SweepProgressed(EventBase):
    """These cells (numbered row by row of `places`) of a sweep of `total` now have `values`, one for each metric;
    `unedited` are the metrics without an edit. `recipe` as in Swept."""

    places: tuple[tuple[Place, ...], ...]
    unedited: tuple[float, ...]
    done: int
    total: int
    cells: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    recipe: str = ""
