"""A sweep: one edit at many places of one line, and a metric of the logits that each gives."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Edit, EditBase
from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.limits import MOST_TOKENS, Name, Spelling
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest

Axis = Literal["layer", "position", "head", "coef"]
Line = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=MOST_TOKENS)] | Name


class Mean(EditBase, frozen=True):
    """The mean over the positions of the clean line, of the line itself where there is none."""


class Resample(EditBase, frozen=True):
    """The value at another position of the clean line, of the line itself where there is none; drawn by the seed."""


class Noise(Frozen, frozen=True):
    """Normal noise on what enters the first layer at `positions`, of `scale` times the standard deviation that the line
    has there; drawn by the sweep's seed."""

    positions: Annotated[tuple[int, ...], Meta(min_length=1, max_length=MOST_TOKENS)]
    scale: Annotated[float, Meta(gt=0)] = 3.0


SweptEdit = Edit | Mean | Resample


class Sweep(SessionRequest, frozen=True, tag="Sweep"):
    """Edit the line `corrupted` at every cell of `over`, one cell at a time, and measure `metric` at its last position.
    A line is its tokens, or the name of the session that has them. Without an `edit` a cell gets the value that `clean`
    has there. `site` names a point, and a layer where `over` does not. The session itself must be empty; the sweep
    computes in its memory, and closing it ends the sweep. `noise` spoils the line `corrupted` before it is swept. Over
    "coef" the edit has each of `coefs` as its factor or coefficient. `fast` computes many cells in one pass and
    recomputes some, chosen by `seed`, alone; `exact` computes each alone."""

    corrupted: Line
    site: Spelling
    over: Annotated[tuple[Axis, ...], Meta(min_length=1, max_length=4)]
    metric: Spelling
    clean: Line | None = None
    edit: SweptEdit | None = None
    noise: Noise | None = None
    coefs: Annotated[tuple[float, ...], Meta(max_length=4096)] = ()
    mode: Mode = "fast"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Swept(ReplyBase, frozen=True, tag="Swept"):
    """`values` is float64, with an axis for each of `over`, whose places are `layers`, `positions`, `heads` and
    `coefs`; `texts` are the corrupted line's tokens. `computed` cells were computed; in the others the edit changes
    nothing, and their value is `corrupted`, the metric of the line without an edit. `clean` is that of the clean line.
    Cells numbered `rechecked` (row by row) were computed again alone, one of them where the edit changes nothing;
    `largest_difference` is what the computed ones differed by, None where each was computed alone anyway, and `mode`
    says so."""

    site: str
    over: tuple[Axis, ...]
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    heads: tuple[int, ...]
    texts: tuple[str, ...]
    metric: str
    edit: str
    values: Array
    corrupted: float
    clean: float | None
    mode: Mode
    seed: int
    computed: int
    rechecked: tuple[int, ...]
    largest_difference: float | None
    tolerance: float
    notes: tuple[str, ...] = ()
    coefs: tuple[float, ...] = ()


class SweepProgressed(EventBase, frozen=True, tag="SweepProgressed"):
    """These cells (numbered row by row) of a sweep of `total` now have values; `corrupted` is that of the line without
    an edit."""

    shape: tuple[int, ...]
    corrupted: float
    done: int
    total: int
    cells: tuple[int, ...]
    values: tuple[float, ...]
