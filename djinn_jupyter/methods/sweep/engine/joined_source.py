"""The line that a pair's cells are patched from, as one of the lines of their wavefront.

It has the base's tokens up to where the two differ, so its rows before that are the base's own, and it joins at the
first layer with those from there on. A cell is patched at its boundary with the row that the source has there by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.wavefront.wavefront import JoiningLine
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.wire.sites import Site

SOURCE: Final = -1  # its number among those of cells


class JoinedSource:
    """The source of one base line, whose rows [n, D] before the first layer are `rows_nD`."""

    def __init__(self, base: RunLine, rows_nD: Tensor) -> None:
        self.base, self.rows_nD = base, rows_nD
        self.start = len(base.tokens) - len(rows_nD)
        self._rows: dict[int, Tensor] = {}  # by boundary; behind the last layer the last row alone

    @property
    def nbytes(self) -> int:
        """The bytes of its rows at every boundary, and of the values that `line` makes of them."""
        kept = len(self.base.residuals) * self.rows_nD.nbytes
        return kept + sum(value.nbytes for value in self.base.raw.values())

    def lines(self, cells: Sequence[Cell]) -> list[JoiningLine]:
        """Return the source's own line, and after it those of the cells that leave the base."""
        boundaries = range(len(self.base.residuals))
        own = JoiningLine(
            number=SOURCE,
            boundary=0,
            start=self.start,
            rows_nD=self.rows_nD,
            later=tuple((boundary, partial(self._keep, boundary)) for boundary in boundaries),
        )
        return [own, *(line for cell in cells if (line := self._line(cell)) is not None)]

    def line(self, tokens: tuple[int, ...], taps: Iterable[Tap]) -> RunLine:
        """Return the source as it ran among others, with its values at taps between layers, as far as cells were
        patched with them."""
        raw: dict[Site, Tensor] = {}
        for tap in taps:
            assert tap.boundary is not None
            rows_nD = self._rows[tap.boundary]
            value = tap.read(self.base.raw[tap.site]).clone()
            value[-len(rows_nD) :] = rows_nD
            raw[tap.site] = tap.write(self.base.raw[tap.site], value)
        return RunLine(tokens=tokens, raw=raw, residuals=(), logits_V=self.base.logits_V)

    def _line(self, cell: Cell) -> JoiningLine | None:
        """Return the line of a cell; None where its row is the base's, or lies behind the last layer unread."""
        boundary, row = place_of(cell)
        base_nD = self.base.residuals[boundary][0, row:]
        behind = boundary == len(self.base.residuals) - 1 and len(base_nD) > 1
        if row < self.start or behind or (boundary == 0 and torch.equal(self.rows_nD[-len(base_nD)], base_nD[0])):
            return None
        return JoiningLine(
            number=cell.number,
            boundary=boundary,
            start=row,
            rows_nD=base_nD,
            later=((boundary, partial(self._patched, boundary)),),
        )

    def _keep(self, boundary: int, rows_nD: Tensor) -> Tensor:
        self._rows[boundary] = rows_nD.clone()
        return rows_nD

    def _patched(self, boundary: int, rows_nD: Tensor) -> Tensor:
        patched = rows_nD.clone()
        patched[0] = self._rows[boundary][-len(rows_nD)]
        return patched


def is_served(cell: Cell) -> bool:
    """Return whether a cell takes one whole row of the source, between two layers, at its own position."""
    (spot, *others) = cell.spots
    layout = spot.tap.layout
    return (
        not others
        and spot.tap.boundary is not None
        and isinstance(layout, PositionLayout)
        and layout.heads is None
        and spot.units is None
        and spot.rows is not None
        and len(spot.rows) == 1
        and spot.rows == spot.source_rows
    )


def place_of(cell: Cell) -> tuple[int, int]:
    """Return the boundary and the position of a cell that is served."""
    spot = cell.spots[0]
    assert spot.tap.boundary is not None and spot.rows is not None
    return spot.tap.boundary, spot.rows[0]
