"""The findings of a sweep so far: the metrics of each cell, and the trust in cells computed together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from djinn_jupyter.engine.interventions.metric import Values
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.sweep.request import EditedLine, Measured


@dataclass(slots=True, kw_only=True)
class Found:
    """`unchanged` are the `metrics` of the line without an edit, `sizes` the largest logits that they read there, and
    `values` those of each cell. `rounding` is the share of its size by which a logit may differ among others. `largest`
    are the largest differences of the cells computed again, whose values alone are `exact`, None while there are
    none."""

    metrics: tuple[str, ...]
    rounding: float
    sizes: Values
    unchanged: Values
    values: list[Values]
    computed: list[int] = field(default_factory=list)
    rechecked: list[int] = field(default_factory=list)
    exact: list[Values] = field(default_factory=list)
    largest: Values | None = None
    missed: int | None = None  # a cell that was left out wrongly
    notes: list[str] = field(default_factory=list)

    def keep(self, values: Mapping[int, Values], computed: Iterable[int]) -> None:
        """Take the values of cells that were finished before, of which some were `computed`."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += computed

    def take(self, values: Mapping[int, Values]) -> None:
        """Note the values of cells that were computed, by number."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += values

    def recheck(self, number: int, exact: Values, *, computed: bool) -> None:
        """Note a cell's `exact` values beside those that it has: `computed` together with others, or left out."""
        if computed:
            self.compare(exact, self.values[number])
        else:
            self.exact.append(exact)
            if any(map(_difference, exact, self.values[number])):
                self.missed = number
        self.rechecked.append(number)

    def compare(self, exact: Values, together: Values) -> None:
        """Note the `exact` values of a line beside those that it has together with others."""
        differences = tuple(map(_difference, exact, together))
        self.largest = differences if self.largest is None else tuple(map(max, self.largest, differences))
        self.exact.append(exact)

    def begin_again(self, unchanged: Values, sizes: Values, values: list[Values]) -> None:
        """Distrust what was computed together; take these of the line without an edit, and those of each cell."""
        self.unchanged, self.sizes, self.values = unchanged, sizes, values
        self.largest, self.rechecked = None, []
        self.computed.clear()

    def tolerance(self, metric: int) -> float:
        """Return by how much the cells computed together may differ in a metric, by its number. A wrong value of one
        of them makes no difference to it."""
        found = (self.sizes[metric], *(values[metric] for values in self.exact))
        return self.rounding * max(1.0, *(abs(one) for one in found if math.isfinite(one)))

    def distrusted(self) -> str | None:
        """Return why the recheck does not bear out the cells computed together, None where it does."""
        if self.missed is not None:
            return f"Cell {self.missed} was left out, and the edit changes something there"
        for number, largest in enumerate(self.largest or ()):
            if largest > self.tolerance(number):
                return (
                    f"Cells computed together differed from the same computed alone by up to {largest:.2g}, more than "
                    f"{self.tolerance(number):.2g}"
                )
        return None

    def measured(self, shape: tuple[int, ...], source: Values | None, into: EditedLine) -> tuple[Measured, ...]:
        """Return each metric of all cells; `source` are those of the other line of the pair, the one not edited."""
        clean, corrupted = (source, self.unchanged) if into == "corrupted" else (self.unchanged, source)
        assert corrupted is not None
        columns = torch.tensor(self.values, dtype=torch.float64).reshape(*shape, len(self.metrics))
        return tuple(
            Measured(
                metric=text,
                values=to_array(columns[..., number].contiguous()),
                corrupted=corrupted[number],
                clean=None if clean is None else clean[number],
                largest_difference=None if self.largest is None else self.largest[number],
                tolerance=self.tolerance(number),
            )
            for number, text in enumerate(self.metrics)
        )


def _difference(one: float, other: float) -> float:
    """Return by how much two values differ: infinitely where only one of them is a finite number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    difference = abs(one - other)
    return math.inf if math.isnan(difference) else difference
