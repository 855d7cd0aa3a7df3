"""A sweep under way: its lines, its cells one by one or many at once, the recheck, and the reply."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import device_memory_for
from djinn_jupyter.engine.forward.frame import Override
from djinn_jupyter.engine.interventions import edits
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces, Steps
from djinn_jupyter.engine.sweeps import swept_edits
from djinn_jupyter.engine.sweeps.lines import LinesAlone, RunLine
from djinn_jupyter.engine.sweeps.metric import Metric
from djinn_jupyter.engine.sweeps.places import Cell, Places
from djinn_jupyter.engine.sweeps.together import Together, values_of
from djinn_jupyter.engine.sweeps.workspace import Reservation, Workspace
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.engine.wavefront.wavefront import Line, Wavefront
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.sweeps import Noise, SweepProgressed, Swept, SweptEdit

CHUNK_ROWS: Final = 4096
STREAMED_CHUNK: Final = 256 * 2**20  # bytes of rows of a streamed model, which crosses the link once a chunk
COMPARED: Final = 4 * 2**20  # bytes of values edited and compared in one slice, about a millisecond
RECHECKED: Final = 3  # computed cells of a fast sweep that are computed again alone
LEFT_OUT: Final = 1  # and of those that were left out because nothing changes there
TOLERANCE: Final = {torch.float32: 1e-3, torch.float64: 1e-6}  # of the largest value, at least of 1
COARSE: Final = 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request: `clean` and `corrupted` as tokens, `edit` None to patch from the clean line."""

    places: Places
    corrupted: tuple[int, ...]
    clean: tuple[int, ...] | None
    edit: SweptEdit | None
    noise: Noise | None
    metric: Metric
    mode: Mode
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """The results of the cells so far."""

    unchanged: float  # the metric of the line without an edit
    values: list[float]
    computed: list[int] = field(default_factory=list)
    rechecked: list[int] = field(default_factory=list)
    largest: float | None = None
    missed: int | None = None  # a cell that was left out wrongly
    notes: list[str] = field(default_factory=list)


class Sweeping:
    """One sweep of one session."""

    def __init__(self, runtime: Runtime, session: Session, asked: Asked, together: Together) -> None:
        self.runtime, self.session, self.asked, self.together = runtime, session, asked, together
        self.alone = LinesAlone(runtime, session)
        self.mode: Mode = asked.mode
        self.done = 0

    def steps(self, workspace: Workspace) -> Steps:
        """Compute every cell. Raises OutOfDeviceMemory where a pass of many lines finds none."""
        advice = "Close sessions, or compute each cell alone (--exact)."
        with (
            device_memory_for("a pass of this sweep's lines", advice),
            workspace.opened(self.runtime.space, self.session) as room,
        ):
            return (yield from self._steps(room))

    def _steps(self, room: Reservation) -> Steps:
        asked, taps = self.asked, tuple(self.asked.places.taps.values())
        notes = list(asked.notes)
        if self.mode == "fast":
            why = yield from self.together.why_not(self.alone)
            if why is not None:
                self.mode = "exact"
                notes.append(f"Each cell was computed alone, for this family's lines cannot share a pass: {why}.")
        first, clean = self.alone.borders()[0], None
        if asked.clean is not None:
            seen = (*(taps if swept_edits.reads_a_line(asked.edit) else ()), *((first,) if asked.noise else ()))
            clean = yield from self._reserved(room, seen, asked.clean, residuals=False)
        spoiled: tuple[Override, ...] = ()
        if asked.noise is not None and clean is not None:
            raw = swept_edits.noised(clean.raw[first.site], asked.noise, asked.seed)
            spoiled = (Override(tap=first, raw=raw),)
        base = yield from self._reserved(room, taps, asked.corrupted, residuals=True, overrides=spoiled)
        unchanged = asked.metric.of(base.logits_V)
        found = Found(unchanged=unchanged, values=[unchanged] * math.prod(asked.places.shape), notes=notes)
        yield from self._compute(room, base, clean, list(asked.places.cells()), found)
        return self._reply(found, None if clean is None else asked.metric.of(clean.logits_V))

    def _reserved(
        self,
        room: Reservation,
        taps: tuple[Tap, ...],
        tokens: tuple[int, ...],
        *,
        residuals: bool,
        overrides: tuple[Override, ...] = (),
    ) -> Generator[Blocked | None, None, RunLine]:
        """Run a line within what is reserved for it before: as much as its tensors will have, corrected by what they
        do have."""
        expected = self.alone.expected_bytes(tokens, taps, residuals=residuals)
        yield from room.take(expected)
        line = yield from self.alone.run(tokens, taps, residuals=residuals, overrides=overrides)
        if line.nbytes > expected:
            yield from room.take(line.nbytes - expected)
        else:
            room.give_back(expected - line.nbytes)
        return line

    def _compute(
        self, room: Reservation, base: RunLine, clean: RunLine | None, cells: list[Cell], found: Found
    ) -> Pieces:
        if self.mode == "exact":
            yield from self._one_by_one(base, clean, cells, found)
            return
        yield from self._at_once(room, base, clean, cells, found)
        yield from self._recheck(base, clean, cells, found)
        why = self._distrusted(found)
        if why is not None:
            found.notes.append(f"{why}: every cell was computed alone.")
            self.mode, found.largest, found.rechecked, self.done = "exact", None, [], 0
            found.computed.clear()
            yield from self._one_by_one(base, clean, cells, found)

    def _distrusted(self, found: Found) -> str | None:
        """Return why the recheck does not bear out the cells computed together, None where it does."""
        if found.missed is not None:
            return f"Cell {found.missed} was left out, and the edit changes something there"
        if found.largest is None or found.largest <= self._tolerance(found):
            return None
        return (
            f"Cells computed together differed from the same computed alone by up to {found.largest:.2g}, more than "
            f"{self._tolerance(found):.2g}"
        )

    # --- one by one ------------------------------------------------------------------------------------------------

    def _one_by_one(self, base: RunLine, clean: RunLine | None, cells: Sequence[Cell], found: Found) -> Pieces:
        for cell in cells:
            raw = self._changed(base, clean, cell, always=found.missed is not None)
            if raw is not None:
                logits_V = yield from self.alone.logits(base, self._tap(cell), raw)
                found.values[cell.number] = self.asked.metric.of(logits_V)
                found.computed.append(cell.number)
            self._tell([cell.number], found)
            yield None

    def _changed(self, base: RunLine, clean: RunLine | None, cell: Cell, *, always: bool = False) -> Tensor | None:
        """Return the raw value at a cell's tap with the cell's edit in it; None where that changes no bit, but
        `always` for a recheck."""
        tap = self._tap(cell)
        raw = base.raw[tap.site]
        value = tap.read(raw)
        before = edits.take(value, cell.rows, cell.heads)
        source = value if clean is None or tap.site not in clean.raw else tap.read(clean.raw[tap.site])
        part = swept_edits.part_of(self.asked.edit, cell, value, source, self.asked.seed)
        if not always and same_bits(part, before):
            return None
        return tap.write(raw, edits.put(value, part, cell.rows, cell.heads))

    def _tap(self, cell: Cell) -> Tap:
        return self.asked.places.taps[cell.layer]

    # --- many at once ----------------------------------------------------------------------------------------------

    def _at_once(
        self, room: Reservation, base: RunLine, clean: RunLine | None, cells: Sequence[Cell], found: Found
    ) -> Pieces:
        front = self.together.front(base)
        for _ in front.prepare():
            yield None
        yield from room.take(front.base.nbytes)
        chunk: list[Line] = []
        rows, most = 0, self._chunk_rows(base)
        settled: list[int] = []
        compared = 0
        for cell in cells:
            line = yield from self._line(base, clean, cell)
            compared += base.raw[self._tap(cell).site].nbytes
            if compared > COMPARED or self._tap(cell).boundary is None:  # inside a layer, that layer has run
                compared = 0
                yield None
            if line is None:
                settled.append(cell.number)
                continue
            chunk.append(line)
            rows += line.rows_nD.shape[0]
            if rows >= most:
                yield from self._run_chunk(room, front, chunk, found)
                chunk, rows = [], 0
        if chunk:
            yield from self._run_chunk(room, front, chunk, found)
        self._tell(settled, found)

    def _line(self, base: RunLine, clean: RunLine | None, cell: Cell) -> Generator[Blocked | None, None, Line | None]:
        """Return the line of a cell from where it leaves the base; None where its last row never does."""
        raw, tap = self._changed(base, clean, cell), self._tap(cell)
        if raw is None:
            return None
        if tap.boundary is not None:
            boundary, after = tap.boundary, raw
        else:
            boundary, after = tap.stage + 1, (yield from self.alone.after_layer(base, tap, raw))
        start = _first_other(after[0], base.residuals[boundary][0])
        last = len(base.tokens) - 1
        if start is None or (boundary == self.runtime.forward.layers and start < last and _same_end(after, base)):
            return None
        return Line(number=cell.number, boundary=boundary, start=start, rows_nD=after[0, start:].clone())

    def _chunk_rows(self, base: RunLine) -> int:
        row = base.residuals[0][0, 0]
        return max(CHUNK_ROWS, STREAMED_CHUNK // row.nbytes) if self.runtime.forward.weights.streamed else CHUNK_ROWS

    def _run_chunk(self, room: Reservation, front: Wavefront, lines: Sequence[Line], found: Found) -> Pieces:
        """Compute lines together. While a layer runs, the rows before it and behind it are there, and joined keys."""
        size = 2 * sum(line.nbytes for line in lines) + front.joined_bytes(len(lines))
        try:
            yield from room.take(size)
        except SlabFull:
            if len(lines) < 2 or sum(line.rows_nD.shape[0] for line in lines) <= CHUNK_ROWS:
                raise
            half = len(lines) // 2
            yield from self._run_chunk(room, front, lines[:half], found)
            yield from self._run_chunk(room, front, lines[half:], found)
            return
        values = yield from values_of(self.together, front, lines, self.asked.metric)
        for number, value in values.items():
            found.values[number] = value
        found.computed += values
        self._tell(list(values), found)
        room.give_back(size)

    def _recheck(self, base: RunLine, clean: RunLine | None, cells: Sequence[Cell], found: Found) -> Pieces:
        """Compute some of the cells again, alone, also of those left out, and note by how much they differ."""
        draw, computed = random.Random(self.asked.seed), set(found.computed)
        some = draw.sample(sorted(computed), min(RECHECKED, len(computed)))
        left_out = sorted({cell.number for cell in cells} - computed)
        for number in (*some, *draw.sample(left_out, min(LEFT_OUT, len(left_out)))):
            raw = self._changed(base, clean, cells[number], always=True)
            assert raw is not None
            exact = self.asked.metric.of((yield from self.alone.logits(base, self._tap(cells[number]), raw)))
            difference = _difference(exact, found.values[number])
            if number in computed:
                found.largest = difference if found.largest is None else max(found.largest, difference)
            elif difference:
                found.missed = number
            found.rechecked.append(number)
            yield None

    def _tolerance(self, found: Found) -> float:
        share = TOLERANCE.get(self.runtime.forward.model.dtype, COARSE)
        return share * max([1.0, *(abs(value) for value in found.values if math.isfinite(value))])

    # --- the report ------------------------------------------------------------------------------------------------

    def _tell(self, cells: list[int], found: Found) -> None:
        if not cells:
            return
        self.done += len(cells)
        told = SweepProgressed(
            session=self.session.name,
            shape=self.asked.places.shape,
            corrupted=found.unchanged,
            done=self.done,
            total=len(found.values),
            cells=tuple(cells),
            values=tuple(found.values[number] for number in cells),
        )
        self.runtime.publish(told)

    def _reply(self, found: Found, clean: float | None) -> Swept:
        asked, places = self.asked, self.asked.places
        return Swept(
            site=str(places.site),
            over=places.over,
            layers=places.layers,
            positions=tuple(places.positions),
            heads=tuple(places.heads),
            texts=tuple(self.runtime.tokenizer.text_of(token) for token in asked.corrupted),
            metric=asked.metric.condition.text,
            edit=swept_edits.spell(asked.edit, asked.noise),
            values=to_array(torch.tensor(found.values, dtype=torch.float64).reshape(places.shape)),
            corrupted=found.unchanged,
            clean=clean,
            mode=self.mode,
            seed=asked.seed,
            computed=len(found.computed),
            rechecked=tuple(found.rechecked),
            largest_difference=found.largest,
            tolerance=self._tolerance(found),
            notes=tuple(found.notes),
            coefs=places.coefs,
        )


def _difference(one: float, other: float) -> float:
    """Return by how much two values differ: infinitely where only one of them is a finite number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    difference = abs(one - other)
    return math.inf if math.isnan(difference) else difference


def same_bits(part: Tensor, before: Tensor) -> bool:
    return torch.equal(part, before)


def _first_other(rows_SD: Tensor, base_SD: Tensor) -> int | None:
    """Return the first row that has another bit than the base's, None where none has."""
    other = (rows_SD != base_SD).flatten(1).any(1).nonzero()
    return int(other[0]) if len(other) else None


def _same_end(after: Tensor, base: RunLine) -> bool:
    return torch.equal(after[0, -1], base.residuals[-1][0, -1])
