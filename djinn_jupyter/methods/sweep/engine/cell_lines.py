"""The lines of a sweep's cells in a wavefront, each from where it leaves the unedited line. Runs a layer alone only
where others cannot run it with the cell's value inside."""

from __future__ import annotations

from collections.abc import Collection, Generator

import torch
from torch import Tensor

from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.wavefront.inside import Inside, is_served
from djinn_jupyter.engine.wavefront.shared_cache import KeyValues
from djinn_jupyter.engine.wavefront.shared_keys import first_other_keys, of_base
from djinn_jupyter.engine.wavefront.wavefront import JoiningLine, Wavefront
from djinn_jupyter.methods.common.engine.lines import LinesAlone, RunLine
from djinn_jupyter.methods.sweep.engine.cell_edits import CellEdit, CellEdits, first_other
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.methods.sweep.engine.together import Together


class CellLines:
    """Makes the lines of cells of one sweep, whose lines `alone` run in its session."""

    def __init__(self, together: Together, alone: LinesAlone) -> None:
        self._together, self._alone = together, alone

    def line(
        self, front: Wavefront, edits: CellEdits, cell: Cell
    ) -> Generator[Blocked | None, None, JoiningLine | None]:
        """Return the line of a cell from where it leaves the base; None where its last row never does."""
        edited = edits.of(cell)
        if edited is None:
            return None
        boundary, after, later = edited.tap.boundary, self.by_line(edited.raw), edited.later
        keys: dict[int, KeyValues] = {}
        if boundary is None:
            inside = self._inside(edits.base, edited, cell.number)
            taps = (edited.tap, *edited.tap.later, *(one.tap for one in later))
            layer = max(0, *(tap.stage for tap in taps))
            if inside is not None and (
                yield from self._together.has_inside(front, inside, lambda: self.behind(edits, edited, layer))
            ):
                return inside
            boundary, after, later = layer + 1, (yield from self.behind(edits, edited, layer)), ()
            keys = yield from self._keys(edits, edited, front.handed_on(edited.tap.stage, boundary))
        start = first_other(after[0], edits.base.residuals[boundary][0])
        other = (first_other_keys(rows, edits.base.rows.of_layer[number]) for number, rows in keys.items())
        starts = [one for one in (start, *other, *(edit.first_changed() for edit in later)) if one is not None]
        last = len(edits.base.tokens) - 1
        if not starts or (
            boundary == self._together.runtime.forward.layers and min(starts) < last and same_end(after, edits.base)
        ):
            return None
        return JoiningLine(
            number=cell.number,
            boundary=boundary,
            start=min(starts),
            rows_nD=after[0, min(starts) :].clone(),
            later=tuple((edit.boundary, edit.of_rows) for edit in later),
            keys={number: of_base(rows, min(starts)) for number, rows in keys.items()},
        )

    def _inside(self, base: RunLine, edited: CellEdit, number: int) -> JoiningLine | None:
        """Return the line of a cell that takes its value inside a layer which others run with it; None where it has to
        run that layer alone."""
        tap, layers = edited.tap, self._together.runtime.forward.layers
        if self._together.packing is None or edited.later or not is_served(tap) or tap.stage not in range(layers):
            return None
        value, before = tap.read(edited.raw), tap.read(base.raw[tap.site])
        start = first_other(value, before)
        if start is None or (tap.stage == layers - 1 and torch.equal(value[-1], before[-1])):
            return None
        return JoiningLine(
            number=number,
            boundary=tap.stage,
            start=start,
            rows_nD=base.residuals[tap.stage][0, start:],
            inside=Inside(tap=tap, value=value[start:].clone()),
        )

    def behind(self, edits: CellEdits, edited: CellEdit, layer: int) -> Generator[Blocked | None, None, Tensor]:
        """Return a cell's hidden state [1, S, D] behind a layer, computed alone."""
        return (yield from self._alone.after_layer(edits.base, edited.tap, edited.raw, layer, edited.later))

    def by_line(self, hidden: Tensor) -> Tensor:
        return self._together.runtime.forward.anatomy.by_line(hidden)

    def _keys(
        self, edits: CellEdits, edited: CellEdit, numbers: Collection[int]
    ) -> Generator[Blocked | None, None, dict[int, KeyValues]]:
        """Return a cell's keys and values in these layers of the cache."""
        if not numbers:
            return {}
        return (yield from self._alone.keys(edits.base, edited.tap, edited.raw, numbers, edited.later))


def same_end(after: Tensor, base: RunLine) -> bool:
    """Return whether a hidden state behind the last layer has the base's bits at the last position."""
    return torch.equal(after[0, -1], base.residuals[-1][0, -1])
