"""The estimates of a sweep's cells: the change of what is at each place, times the gradient there.

To first order the changes at several places add up, so a cell is the sum over its places: a few sums of one tensor.

Shapes: S positions, U heads or features, M metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.methods.attribution.engine.carried import Carried
from djinn_jupyter.methods.attribution.engine.line import GradientStream
from djinn_jupyter.methods.sweep.engine.axes import Part
from djinn_jupyter.methods.sweep.engine.places import SweptPlaces
from djinn_jupyter.wire.sites import Site

SUMMED: Final[tuple[Part, ...]] = ("point", "layer", "row", "unit")  # the parts of an edit that changes add up over


@dataclass(slots=True, kw_only=True, eq=False)
class Estimates:
    """Takes gradients at the taps of `places`. `changes` are the values' changes, float32, by site, set as a line goes
    forward; `weight` is the share of each gradient. Changes that are `carried` to another site count there, by the
    gradient of that site, and not where they are made. With `dropping` a score is the mean size over gradients that
    bypass each of the `layers` in turn."""

    places: SweptPlaces
    layers: int
    weight: float = 1.0
    dropping: bool = False
    changes: dict[Site, Tensor] = field(default_factory=dict)
    carried: dict[Site, dict[Site, Carried]] = field(default_factory=dict)
    _found: dict[tuple[Site, GradientStream], Tensor] = field(default_factory=dict)

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None:
        """Add the estimates of a tap's places for one stream."""
        gradient = tap.read(raw_gradient.contiguous()).to(torch.float32)
        for site, carried in self.carried.get(tap.site, {}).items():
            self._add(site, stream, carried.effect(gradient))
        if tap.site in self.changes and not any(tap.site in made for made in self.carried.values()):
            # Hidden scores can be infinite.
            product = (self.changes[tap.site] * gradient).masked_fill_(gradient == 0, 0.0)
            summed = product.flatten(2).sum(-1, dtype=torch.float64) if product.ndim > 2 else product.double()
            self._add(tap.site, stream, summed)

    def _add(self, site: Site, stream: GradientStream, product_SU: Tensor) -> None:
        rows = self.places.alignment.rows
        part = product_SU if rows is None else product_SU[list(rows)]
        if "unit" not in self.places.parts:
            units = self.places.units
            part = (part if units is None else part[:, list(units)]).sum(1, keepdim=True)
        if "row" not in self.places.parts:
            part = part.sum(0, keepdim=True)
        key = site, stream
        self._found[key] = self.weight * part + self._found.get(key, 0.0)

    def values(self, metrics: int) -> Tensor:
        """Return the estimates [cells along each axis, M], float64, on the host; 0 where no gradient comes."""
        return torch.stack([self._grid(metric) for metric in range(metrics)], dim=-1)

    def _grid(self, metric: int) -> Tensor:
        found = [self._of(tap, metric) for tap in self.places.taps.values()]
        shape = next((one.shape for one in found if one is not None), torch.Size(self._missing()))
        parts = [torch.zeros(shape, dtype=torch.float64) if one is None else one.cpu() for one in found]
        points = len({point for point, _ in self.places.taps})
        by_tap = torch.stack(parts).reshape(-1, points, *shape).transpose(0, 1)  # taps go by layer, then by point
        for number, part in enumerate(SUMMED):
            by_tap = _of_places(by_tap, number, self._places(part))
        along = [SUMMED.index(part) for part in self.places.parts]
        others = [number for number in range(len(SUMMED)) if number not in along]
        cells = by_tap.permute(*along, *others).reshape([len(of) for of in self.places.axes.values()])
        return _in_pairs(cells) if self.places.in_pairs else cells

    def _places(self, part: Part) -> list[list[int]]:
        """Return for each place of the axis that divides a part where its elements lie among those that are summed;
        the first alone where no axis does."""
        if part not in self.places.parts:
            return [[0]]
        points, layers = zip(*self.places.taps, strict=True)
        counted = {"point": points, "layer": layers, "row": self.places.alignment.rows}.get(part)
        number = None if counted is None else {one: at for at, one in enumerate(dict.fromkeys(counted))}
        edited = self.places.edited(self.places.parts[part])
        return [[one if number is None else number[one] for one in elements] for elements in edited]

    def _of(self, tap: Tap, metric: int) -> Tensor | None:
        """Return the estimates of a tap's places. Bypassing a layer below changes nothing there; bypassing its own
        leaves nothing, and is not counted."""
        plain = self._found.get((tap.site, GradientStream(metric)))
        if plain is None or not self.dropping:
            return plain
        past = (self._found.get((tap.site, GradientStream(metric, layer))) for layer in range(self.layers))
        below, counted = (tap.stage, self.layers - 1) if tap.boundary is None else (tap.boundary, self.layers)
        total = below * plain.abs() + sum(one.abs() for one in past if one is not None)
        return total / counted if counted else plain.abs()

    def _missing(self) -> list[int]:
        """Return the rows and the units that there are, by their places."""
        return [1 + max(map(max, self._places(part))) for part in SUMMED[2:]]


def _of_places(cells: Tensor, axis: int, places: Sequence[Sequence[int]]) -> Tensor:
    """Return along `axis` the sum at each of `places`, in the order of its numbers."""
    if [*places] == [[number] for number in range(cells.shape[axis])]:
        return cells
    summed = cells.index_select(axis, torch.tensor([numbers[0] for numbers in places]))
    for step in range(1, max(map(len, places))):
        more = {at: numbers[step] for at, numbers in enumerate(places) if len(numbers) > step}
        summed.index_add_(axis, torch.tensor([*more]), cells.index_select(axis, torch.tensor([*more.values()])))
    return summed


def _in_pairs(cells: Tensor) -> Tensor:
    """Return the sums of every two cells, with every axis twice; a cell with itself is that cell."""
    flat = cells.reshape(-1)
    summed = flat[:, None] + flat[None]
    summed.diagonal().copy_(flat)
    return summed.reshape(*cells.shape, *cells.shape)
