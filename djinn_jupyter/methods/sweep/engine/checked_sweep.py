"""A sweep that was asked for, checked: with tokens, taps and metrics in place of names. Computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from djinn_jupyter.engine.interventions.metric import Metrics, Values
from djinn_jupyter.methods.sweep.engine.places import Cell, SweptPlaces
from djinn_jupyter.methods.sweep.request import EditedLine, Noise, Recipe, SweptEdit
from djinn_jupyter.wire.nouns import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSweep:
    """A checked request: `edit` None patches from the `source` into the `line`, which are tokens; `into` says which of
    the two lines of a pair is edited. Cells `finished` before, by number, have values already; where cells are
    `chosen`, by number, these alone are computed; `recipe` is the digest of the request, and `made` the request with
    its origin. `calls` are the most rows of each, in turn."""

    places: SweptPlaces
    line: tuple[int, ...]
    source: tuple[int, ...] | None
    edit: SweptEdit | None
    noise: Noise | None
    metrics: Metrics
    mode: Mode
    seed: int
    notes: tuple[str, ...] = ()
    into: EditedLine = "corrupted"
    pair: int = 0
    finished: Mapping[int, Values] = field(default_factory=dict)
    chosen: frozenset[int] | None = None
    recipe: str = ""
    made: Recipe | None = None
    calls: tuple[tuple[int, int], ...] = ()

    def cells(self) -> list[Cell]:
        """Return the cells to compute, the coarse ones first; those of pairs of cells on either side of the diagonal
        stand for both."""
        cells = self.places.cells()
        if self.chosen is None:
            return cells
        return [cell for cell in cells if not self.chosen.isdisjoint(self.places.numbers_of(cell.number))]

    def before(self, unchanged: Values) -> list[Values]:
        """Return the values of the grid's cells before any is computed: the line's own, NaN where none will be."""
        count = math.prod(self.places.shape)
        if self.chosen is None:
            return [unchanged] * count
        there = {other for number in self.chosen for other in self.places.numbers_of(number)}
        none = (math.nan,) * len(unchanged)
        return [unchanged if number in there else none for number in range(count)]

    @property
    def total(self) -> int:
        """The number of cells of the grid that get a value."""
        if self.chosen is None:
            return math.prod(self.places.shape)
        return len({other for number in self.chosen for other in self.places.numbers_of(number)})
