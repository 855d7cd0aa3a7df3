"""Many cells in one pass: which families can, proved on the model itself; the metrics of a chunk, and a clean prompt in
the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes.conditions import Metrics, Values
from djinn_jupyter.engine.passes.packing import Packing
from djinn_jupyter.engine.passes.sections import ArgumentAxes, Inside, first_other_keys, is_served, of_base
from djinn_jupyter.engine.passes.shared_cache import REFUSALS, KeyValues, equal_but_for_rounding, why_not_joined
from djinn_jupyter.engine.passes.wavefront import CallPlan, JoiningLine, Wavefront
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.system.device import out_of_memory
from djinn_jupyter.methods.common.engine.lines import LinesAlone, RunLine
from djinn_jupyter.methods.sweep.engine.checked_sweep import FewLogits
from djinn_jupyter.methods.sweep.engine.edits import CellEdit, CellEdits, first_other
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.wire.sites import Site

LENGTH: Final = 9
STARTS: Final = (3, 6)
HEAD_ROWS: Final = 64
Way = Literal["in sections", "packed", "a start at a time"]
WAYS: Final[tuple[Way, ...]] = ("in sections", "packed", "a start at a time")
Looked = Generator[Blocked | None, None, None]


class Together:
    """The abilities of this model, tested at the first sweep on a short sequence: layers that run several sequences at
    once, or sequences with different starts in one call; a head that computes a few columns alone."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.axes = runtime, ArgumentAxes()
        self.packing: Packing | None = None
        self.columns = False
        self.few_logits = FewLogits(runtime.forward, runtime.counters)
        self._tested = False
        self._why_not: str | None = None
        self._inside: dict[tuple[Any, ...], bool] = {}

    def why_not(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Return why sequences have to run one by one here, None if they need not."""
        if not self._tested:
            self._why_not = why_not_joined(self.runtime.forward) or (yield from self._trial(alone))
            self._tested = True
        return self._why_not

    def front(self, base: RunLine, plan: CallPlan) -> Wavefront:
        forward = self.runtime.forward
        return Wavefront(forward, base.tokens, base.residuals, base.rows, self.axes, self.packing, plan=plan)

    def logits(self, rows_nD: Tensor, tokens: Sequence[int] | None) -> Tensor:
        """Return logits from rows after the last layer: only of `tokens` where they are few and the head allows it."""
        forward = self.runtime.forward
        if tokens is None or not self.columns:
            rows_nV = forward.shared_lens(rows_nD)
            return rows_nV if tokens is None else rows_nV[:, list(tokens)]
        return forward.shared_lens(rows_nD, tokens)

    def has_inside(
        self, front: Wavefront, line: JoiningLine, alone: Callable[[], Generator[Blocked | None, None, Tensor]]
    ) -> Generator[Blocked | None, None, bool]:
        """Return whether sequences such as this keep in a batch their value inside a layer. Tested for the first of its
        kind: `alone` returns the value after that layer, [1, S, D]."""
        assert line.inside is not None
        kind = (line.inside.tap.site.point, type(line.inside.tap.module))
        if kind not in self._inside:
            self._inside[kind] = self._agrees_inside(front, line, line.inside, (yield from alone()))
        return self._inside[kind]

    def _agrees_inside(self, front: Wavefront, line: JoiningLine, inside: Inside, after_1SD: Tensor) -> bool:
        spoiled = replace(line, inside=Inside(tap=inside.tap, value=torch.full_like(inside.value, torch.nan)))
        try:
            among_nD = front.behind(line.boundary, [spoiled, line, spoiled])[1]
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False
        return equal_but_for_rounding(among_nD, after_1SD[0, line.start :], among_nD.dtype)

    def _trial(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Compare two sequences in a batch (with some of NaN) with the same sequences alone and with passes of their
        own: packed, in calls that are left before each step; if that fails packed; and if that fails a start at a
        time."""
        size = self.runtime.description.vocab_size
        tokens = tuple(torch.randint(size, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist())
        base = yield from alone.run(tokens, (), residuals=True, rows=True)
        self.few_logits.see(base.residuals[-1])
        changed, exact = [], []
        for start in STARTS:
            line = base.residuals[0].clone()
            line[0, start] *= -0.5
            changed.append(line)
            hidden = self.runtime.forward.anatomy.of_lines(line)
            exact.append((yield from alone.logits(base, alone.borders()[0], hidden)))
        why: str | None = None
        for way in self._ways():
            why = yield from self._tried(base, changed, exact, way)
            if why is None:
                break
        return why

    def _ways(self) -> Sequence[Way]:
        forward = self.runtime.forward  # a GPU runs behind its clock, and streamed weights would cross its link again
        whole = forward.device.type != "cpu" or forward.weights.streamed
        packed = bool(forward.anatomy.mappings)  # only packed rows get keys that layers share
        return WAYS[1 if whole else 0 : 2 if packed else 3]

    def _tried(
        self, base: RunLine, changed: Sequence[Tensor], exact: Sequence[Tensor], way: Way
    ) -> Generator[None, None, str | None]:
        """Return the fault of such sequences, None without one; `packing` and `columns` are set only then, because
        another sweep may begin between two steps."""
        packing: Packing | None = None
        try:
            if way != "a start at a time":
                packing = yield from self._learned(base, way == "in sections")
            rows = yield from self._behind(base, changed, packing)
            logits = self.runtime.forward.shared_lens(rows)
        except REFUSALS as error:
            if out_of_memory(error):
                raise  # shows nothing about the family
            return f"its layers refuse several lines ({first_line(error)})"
        if not equal_but_for_rounding(logits, torch.stack([*exact, *exact]), rows.dtype):
            return "its layers give a line other values among others than alone"
        yield
        self.packing, self.columns = packing, self._columns_agree(rows, logits)
        return None

    def _learned(self, base: RunLine, in_sections: bool) -> Generator[None, None, Packing]:
        packing = Packing(self.runtime.forward, in_sections)
        self._front_of(base, None).learn(packing, STARTS[0])
        yield
        return packing

    def _columns_agree(self, rows_nD: Tensor, rows_nV: Tensor) -> bool:
        """Return whether the head computes columns of its logits separately."""
        tokens = (rows_nV.shape[1] - 1, 2)
        try:
            some = self.runtime.forward.shared_lens(rows_nD, tokens)
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False
        whole = rows_nV[:, list(tokens)]
        return some.shape == whole.shape and equal_but_for_rounding(some[None], whole[None], rows_nD.dtype)

    def _behind(
        self, base: RunLine, changed: Sequence[Tensor], packing: Packing | None
    ) -> Generator[None, None, Tensor]:
        """Return the last rows of the changed sequences in a batch, and then alone."""
        lines = [JoiningLine(number=n, boundary=0, start=at, rows_nD=changed[n][0, at:]) for n, at in enumerate(STARTS)]
        others = [
            JoiningLine(number=one.number + by, boundary=0, start=one.start, rows_nD=rows)
            for one in lines
            for by, rows in ((-100, torch.full_like(one.rows_nD, torch.nan)), (100, -one.rows_nD))
        ]
        front = self._front_of(base, packing)
        among = yield from _run(front, sorted([*others, *lines], key=lambda line: line.number))
        single: list[Tensor] = []
        for line in lines:
            alone = yield from _run(front, [line])
            single.append(alone[line.number])
        return torch.stack([*(among[line.number] for line in lines), *single])

    def _front_of(self, base: RunLine, packing: Packing | None) -> Wavefront:
        forward = self.runtime.forward
        return Wavefront(forward, base.tokens, base.residuals, base.rows, self.axes, packing, step_by_step=True)


def values_of(
    together: Together, front: Wavefront, lines: Sequence[JoiningLine], metrics: Metrics
) -> Generator[None, None, dict[int, Values]]:
    """Return the metrics at each sequence's last position, by its number."""
    behind = yield from _run(front, lines)
    together.runtime.counters.count_layers(front.count())
    numbers = list(behind)
    values: dict[int, Values] = {}
    for first in range(0, len(numbers), HEAD_ROWS):
        some = numbers[first : first + HEAD_ROWS]
        rows_nV = together.logits(torch.stack([behind[number] for number in some]), metrics.tokens)
        values.update((number, metrics.of(row_V, metrics.tokens)) for number, row_V in zip(some, rows_nV, strict=True))
        yield None
    return values


def _run(front: Wavefront, lines: Sequence[JoiningLine]) -> Generator[None, None, dict[int, Tensor]]:
    """Return each sequence's last row after the last layer, by its number."""
    behind: dict[int, Tensor] = {}
    for found in front.run(lines):
        if found is None:
            yield
        else:
            behind = found
    return behind


# The sequences of a sweep's cells in a wavefront, each from where it leaves the unedited one. A layer runs alone only
# where a batch cannot run it with the cell's value inside.


class CellLines:
    """Makes the sequences of cells of one sweep; those `alone` run in its session."""

    def __init__(self, together: Together, alone: LinesAlone) -> None:
        self._together, self._alone = together, alone

    def line(
        self, front: Wavefront, edits: CellEdits, cell: Cell
    ) -> Generator[Blocked | None, None, JoiningLine | None]:
        """Return the sequence of a cell from where it leaves the base; None where its last row never does."""
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
        """Return the sequence of a cell that takes its value inside a layer in a batch; None where it has to run that
        layer alone."""
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
        """Return a cell's hidden state [1, S, D] after a layer, computed alone."""
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
    """Return whether a hidden state after the last layer has the base's bits at the last position."""
    return torch.equal(after[0, -1], base.residuals[-1][0, -1])


# The clean prompt of a pair, as one sequence of the cells' wavefront. It shares the base's tokens up to the first
# difference, so its earlier rows are the base's own, and it joins at the first layer with the rows from there on. A
# cell is patched at its boundary with the clean prompt's present row there.

SOURCE: Final = -1  # its number among those of cells


class JoinedSource:
    """The clean prompt in the batch of one base, whose rows [n, D] before the first layer are `rows_nD`."""

    def __init__(self, base: RunLine, rows_nD: Tensor) -> None:
        self.base, self.rows_nD = base, rows_nD
        self.start = len(base.tokens) - len(rows_nD)
        self._rows: dict[int, Tensor] = {}  # by boundary; after the last layer only the last row

    @property
    def nbytes(self) -> int:
        """The bytes of its rows at every boundary, and of the values that `line` makes from them."""
        kept = len(self.base.residuals) * self.rows_nD.nbytes
        return kept + sum(value.nbytes for value in self.base.raw.values())

    def lines(self, cells: Sequence[Cell]) -> list[JoiningLine]:
        """Return the clean prompt's own sequence, and after it those of the cells that leave the base."""
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
        """Return the clean prompt after its run in the batch, with its values at taps between layers from which cells
        were patched."""
        raw: dict[Site, Tensor] = {}
        for tap in taps:
            assert tap.boundary is not None
            rows_nD = self._rows[tap.boundary]
            value = tap.read(self.base.raw[tap.site]).clone()
            value[-len(rows_nD) :] = rows_nD
            raw[tap.site] = tap.write(self.base.raw[tap.site], value)
        return RunLine(tokens=tokens, raw=raw, residuals=(), logits_V=self.base.logits_V)

    def _line(self, cell: Cell) -> JoiningLine | None:
        """Return the sequence of a cell; None where its row is the base's, or lies after the last layer unread."""
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


def takes_one_row(cell: Cell) -> bool:
    """Return whether a cell takes one whole row of the clean prompt, between two layers, at its own position."""
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
    """Return the boundary and the position of a joined cell."""
    spot = cell.spots[0]
    assert spot.tap.boundary is not None and spot.rows is not None
    return spot.tap.boundary, spot.rows[0]
