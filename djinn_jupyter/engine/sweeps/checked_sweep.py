"""A sweep that was asked for, checked: with tokens, taps and metrics in place of names. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from djinn_jupyter.engine.sweeps.metric import Metrics, Values
from djinn_jupyter.engine.sweeps.places import SweptPlaces
from djinn_jupyter.engine.sweeps.receivers import Receivers
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.sweeps import EditedLine, Noise, Recipe, SweptEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSweep:
    """A checked request: `edit` None patches from the `source` into the `line`, which are tokens; `into` says which of
    the two lines of a pair is edited. With `receivers`, these alone see the edit. Cells `finished` before, by number,
    have values already; `recipe` is the digest of the request, and `made` the request with its origin. `calls` are
    the most rows of each, in turn."""

    places: SweptPlaces
    line: tuple[int, ...]
    source: tuple[int, ...] | None
    edit: SweptEdit | None
    noise: Noise | None
    metrics: Metrics
    mode: Mode
    seed: int
    notes: tuple[str, ...] = ()
    receivers: Receivers | None = None
    into: EditedLine = "corrupted"
    pair: int = 0
    finished: Mapping[int, Values] = field(default_factory=dict)
    recipe: str = ""
    made: Recipe | None = None
    calls: tuple[tuple[int, int], ...] = ()
