"""A sweep in progress: its prompts, its cells one by one or many at once, the recheck, and the reply."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final

import msgspec
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import forward, frame, shared_cache
from djinn_jupyter.engine.passes.conditions import Metrics, Values
from djinn_jupyter.engine.passes.wavefront import CallPlan, JoiningLine, Wavefront
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import OverQuota, SlabFull, UsageError
from djinn_jupyter.extensions import troubles
from djinn_jupyter.methods.common.engine.lines import LinesAlone, RunLine
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep, Found
from djinn_jupyter.methods.sweep.engine.edits import CellEdit, CellEdits, noised, reads_a_line, spell
from djinn_jupyter.methods.sweep.engine.places import Cell, SweptPlaces
from djinn_jupyter.methods.sweep.engine.together import (
    SOURCE,
    CellLines,
    JoinedSource,
    Together,
    place_of,
    same_end,
    takes_one_row,
    values_of,
)
from djinn_jupyter.methods.sweep.request import MOST_PLANNED, Recipe, Sweep, SweepProgressed, Swept, source_of
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout
from djinn_jupyter.wire.nouns import Mode, Progress

CHUNK_ROWS: Final = 4096
COARSE_SHARE: Final = 8
STREAMED_CHUNK: Final = 256 * 2**20  # bytes of rows of a streamed model, which crosses the link once a chunk
COMPARED: Final = 4 * 2**20  # bytes of values edited and compared in one slice, about a millisecond
RECHECKED: Final = 3  # computed cells of a fast sweep that are computed again alone, one for each later pair
LEFT_OUT: Final = 1  # and of those left out because nothing changes there, none for later pairs


class SweepJob:
    """One sweep of one session."""

    def __init__(self, runtime: Runtime, session: Session, asked: CheckedSweep, together: Together) -> None:
        self.runtime, self.session, self.asked, self.together = runtime, session, asked, together
        self.alone = LinesAlone(runtime, session)
        self.lines = CellLines(together, self.alone)
        self.mode: Mode = asked.request.mode
        self.plan = CallPlan(asked.request.calls)
        self.done = len(asked.finished)
        self.source_values: Values | None = None

    @cached_property
    def cells(self) -> list[Cell]:
        return self.asked.cells()

    def steps(self, workspace: Workspace) -> Steps[Swept]:
        """Compute every cell. Raises OutOfDeviceMemory where a pass of many sequences does not fit."""
        self._note_progress()
        advice = "Close sessions, or compute each cell alone (--exact)."
        with forward.device_memory_for("a pass of this sweep's lines", advice), workspace.opened(self.session) as room:
            return (yield from self._steps(room))

    def _steps(self, room: Reservation) -> Steps[Swept]:
        asked, taps = self.asked, tuple(self.asked.places.taps.values())
        first, source = self.alone.borders()[0], None
        notes = list(asked.notes)
        if self.mode == "fast":
            why = yield from self._why_alone()
            if why is not None:
                self.mode = "exact"
                notes.append(f"Each cell was computed alone, for {why}.")
            else:
                self.alone.read((yield from self.together.few_logits.of(asked.metrics.tokens)))
        if asked.source is not None:
            seen = (*(taps if reads_a_line(asked.request.edit) else ()), *((first,) if asked.request.noise else ()))
            source = yield from self._source_line(room, seen, asked.source)
            self.source_values = None if source is None else asked.metrics.of(source.logits_V)
        spoiled: tuple[frame.Override, ...] = ()
        if asked.request.noise is not None and source is not None:
            raw = noised(source.raw[first.site], asked.request.noise, asked.request.seed)
            spoiled = (frame.Override(tap=first, raw=raw),)
        together = self.mode == "fast"
        base = yield from self._reserved(
            room, self._kept_taps(), asked.line, residuals=True, rows=together, overrides=spoiled
        )
        unchanged = asked.metrics.of(base.logits_V)
        found = Found(
            metrics=asked.metrics.texts,
            rounding=shared_cache.rounding_of(self.runtime.forward.model.dtype, self.runtime.forward.layers),
            sizes=asked.metrics.sizes(base.logits_V),
            unchanged=unchanged,
            values=asked.before(unchanged),
            notes=notes,
        )
        yield from self._compute(room, self._edits(base, source), self.cells, found)
        return self._reply(found)

    def _source_line(
        self, room: Reservation, taps: tuple[Tap, ...], tokens: tuple[int, ...]
    ) -> Generator[Blocked | None, None, RunLine | None]:
        """Run the clean prompt; None where it runs later, among the cells."""
        return (yield from self._reserved(room, taps, tokens, residuals=False))

    def _kept_taps(self) -> tuple[Tap, ...]:
        """Return the taps whose values of the sequence are kept."""
        return tuple(self.asked.places.taps.values())

    def _edits(self, base: RunLine, source: RunLine | None) -> CellEdits:
        return CellEdits(self.asked.request.edit, self.asked.request.seed, base, source)

    def _logits(self, edits: CellEdits, edited: CellEdit) -> Generator[Blocked | None, None, Tensor]:
        """Return the logits of one cell, computed alone."""
        return (yield from self.alone.logits(edits.base, edited.tap, edited.raw, edited.later))

    def _why_alone(self) -> Generator[Blocked | None, None, str | None]:
        """Return why cells cannot share passes; None where they can."""
        if not self.session.as_loaded:
            return f"{self.session.why_alone} are shared with no other"
        why = yield from self._why_family_alone()
        return None if why is None else f"this family's lines cannot share a pass: {why}"

    def _why_family_alone(self) -> Generator[Blocked | None, None, str | None]:
        return (yield from self.together.why_not(self.alone))

    def _reserved(
        self,
        room: Reservation,
        taps: tuple[Tap, ...],
        tokens: tuple[int, ...],
        *,
        residuals: bool,
        rows: bool = False,
        overrides: tuple[frame.Override, ...] = (),
    ) -> Generator[Blocked | None, None, RunLine]:
        """Run a sequence within a reservation of its tensors' expected bytes, which is then corrected to their actual
        ones."""
        expected = self.alone.expected_bytes(tokens, taps, residuals=residuals, rows=rows)
        yield from room.take(expected)
        line = yield from self.alone.run(tokens, taps, residuals=residuals, rows=rows, overrides=overrides)
        if line.nbytes > expected:
            yield from room.take(line.nbytes - expected)
        else:
            room.give_back(expected - line.nbytes)
        return line

    def _compute(self, room: Reservation, edits: CellEdits, cells: list[Cell], found: Found) -> Pieces:
        found.keep(self.asked.finished, (yield from self._computed_before(edits, cells, found.unchanged)))
        left = [cell for cell in cells if cell.number not in self.asked.finished]
        if self.mode == "exact":
            yield from self._one_by_one(room, edits, left, found)
            return
        if left:
            yield from self._at_once(room, edits, left, found)
        yield from self._recheck(room, edits, cells, found)
        why = found.distrusted()
        if why is not None:
            found.notes.append(f"{why}: every cell was computed alone.")
            self.mode, self.done = "exact", 0
            yield from self._read_again(room, edits, found)
            yield from self._one_by_one(room, edits, cells, found)

    def _read_again(self, room: Reservation, edits: CellEdits, found: Found) -> Pieces:
        """Run both prompts again, with all their logits: the recheck may distrust those of a few tokens."""
        if found.missed is not None:
            self.together.few_logits.distrust()
        self.alone.read(None)
        end, layers = self.alone.borders()[-1], self.runtime.forward.layers
        logits_V = yield from self.alone.logits(edits.base, end, self.alone.hidden(edits.base, layers))
        metrics, unchanged = self.asked.metrics, self.asked.metrics.of(logits_V)
        found.begin_again(unchanged, metrics.sizes(logits_V), self.asked.before(unchanged))
        if self.asked.source is not None:
            yield from self._run_source(room, edits)

    def _run_source(self, room: Reservation, edits: CellEdits) -> Pieces:
        """Run the clean prompt again, and take its metrics."""
        assert self.asked.source is not None
        again = yield from self.alone.run(self.asked.source, (), residuals=False)
        self.source_values = self.asked.metrics.of(again.logits_V)

    def _computed_before(
        self, edits: CellEdits, cells: Sequence[Cell], unchanged: Values
    ) -> Generator[Blocked | None, None, list[int]]:
        """Return the finished cells that were computed and not left out. The edit shows which values equal the unedited
        one."""
        finished, found, compared = self.asked.finished, list[int](), 0
        for cell in cells:
            if cell.number not in finished:
                continue
            if finished[cell.number] != unchanged or (yield from self._is_computed(edits, cell)):
                found += self.asked.places.numbers_of(cell.number)
            compared += edits.nbytes(cell)
            if compared > COMPARED:
                compared = 0
                yield None
        return found

    def _is_computed(self, edits: CellEdits, cell: Cell) -> Generator[Blocked | None, None, bool]:
        """Return whether a cell is computed: after the last layer a fast sweep reads only the last position."""
        edited = edits.of(cell)
        if edited is None:
            return False
        layer = max(edited.tap.stage, *(one.tap.stage for one in edited.later), 0)
        boundary = layer + 1 if edited.tap.boundary is None else edited.tap.boundary
        if self.mode == "exact" or boundary < self.runtime.forward.layers:
            return True
        after = (
            self.lines.by_line(edited.raw)
            if edited.tap.boundary is not None
            else (yield from self.lines.behind(edits, edited, layer))
        )
        return not same_end(after, edits.base)

    # --- one by one ------------------------------------------------------------------------------------------------

    def _one_by_one(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        for cell in cells:
            edited = edits.of(cell, always=found.missed is not None)
            if edited is not None:
                logits_V = yield from self._logits(edits, edited)
                self._take({cell.number: self.asked.metrics.of(logits_V)}, found)
            self._tell([cell.number], found)
            yield None

    # --- many at once ----------------------------------------------------------------------------------------------

    def _at_once(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        front = self.together.front(edits.base, self.plan)
        chunk: list[JoiningLine] = []
        rows, most = 0, self._first_rows(edits.base, cells)
        settled: list[int] = []
        compared = 0
        for cell in cells:
            line = yield from self.lines.line(front, edits, cell)
            compared += edits.nbytes(cell)
            if compared > COMPARED or cell.spots[0].tap.boundary is None:  # inside a layer, that layer has run
                compared = 0
                yield None
            if line is None:
                settled.append(cell.number)
                continue
            chunk.append(line)
            rows += line.rows_nD.shape[0]
            if rows >= most:
                yield from self._run_chunk(room, front, chunk, found)
                self._tell(settled, found)
                chunk, settled, rows, most = [], [], 0, self._chunk_rows(edits.base)
        if chunk:
            yield from self._run_chunk(room, front, chunk, found)
        self._tell(settled, found)

    def _first_rows(self, base: RunLine, cells: Sequence[Cell]) -> int:
        """Return the number of rows of the first chunk: fewer where others follow, so that a coarse grid is soon
        there."""
        most = self._chunk_rows(base)
        if self.runtime.forward.weights.streamed or len(cells) * len(base.tokens) <= most:
            return most
        return most // COARSE_SHARE

    def _chunk_rows(self, base: RunLine) -> int:
        row = base.residuals[0][0, 0]
        return max(CHUNK_ROWS, STREAMED_CHUNK // row.nbytes) if self.runtime.forward.weights.streamed else CHUNK_ROWS

    def _run_chunk(self, room: Reservation, front: Wavefront, lines: Sequence[JoiningLine], found: Found) -> Pieces:
        """Compute sequences together. While a layer runs, its input and output rows, joined keys, and values kept
        between sections are in memory; during the last one, the keys of all rows."""
        rows = sum(line.rows_nD.shape[0] for line in lines)
        size = 2 * sum(line.nbytes for line in lines) + front.joined_bytes(len(lines))
        size += front.last_bytes(rows) + front.section_bytes(rows) + front.shared_bytes(rows)
        try:
            yield from room.take(size)
        except (SlabFull, OverQuota):
            if len(lines) < 2:
                raise
            half = len(lines) // 2
            yield from self._run_chunk(room, front, lines[:half], found)
            yield from self._run_chunk(room, front, lines[half:], found)
            return
        values = yield from values_of(self.together, front, lines, self.asked.metrics)
        self._take(values, found)
        self._tell(list(values), found)
        room.give_back(size)

    def _recheck(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        """Compute some of the cells again, alone, including some that were left out, and record their differences."""
        if self.asked.request.pair == 0:
            self.alone.read(None)  # so that a wrong proof of single logits is found, by the bits of a cell left out
        draw, computed = random.Random(self.asked.request.seed + self.asked.request.pair), set(found.computed)
        many, few = (RECHECKED, LEFT_OUT) if self.asked.request.pair == 0 else (1, 0)
        numbers = [cell.number for cell in cells]
        some = draw.sample(sorted(computed & set(numbers)), min(many, len(computed & set(numbers))))
        left_out = sorted(set(numbers) - computed)
        by_number = dict(zip(numbers, cells, strict=True))
        for number in (*some, *draw.sample(left_out, min(few, len(left_out)))):
            edited = edits.of(by_number[number], always=True)
            assert edited is not None
            logits_V = yield from self._logits(edits, edited)
            was_computed = number in computed or number in self.asked.finished  # its value may be the unedited one
            found.recheck(number, self.asked.metrics.of(logits_V), computed=was_computed)
            yield None

    def _take(self, values: Mapping[int, Values], found: Found) -> None:
        """Record the values of cells, for a pair of cells on both sides of the diagonal."""
        places = self.asked.places
        found.take({other: of_cell for number, of_cell in values.items() for other in places.numbers_of(number)})

    # --- the report ------------------------------------------------------------------------------------------------

    def _note_progress(self) -> None:
        now = Progress(doing="sweeping", done=self.done, total=self.asked.total, counted="cells")
        self.session.progress.note(now)

    def _tell(self, cells: Sequence[int], found: Found) -> None:
        cells = [other for number in cells for other in self.asked.places.numbers_of(number)]
        if not cells:
            return
        self.done += len(cells)
        self._note_progress()
        told = SweepProgressed(
            session=self.session.name,
            places=self.asked.places.along,
            unedited=found.unchanged,
            done=self.done,
            total=self.asked.total,
            cells=tuple(cells),
            values=tuple(found.values[number] for number in cells),
            recipe=self.asked.recipe,
        )
        self.runtime.publish(told)

    def _made(self) -> Recipe | None:
        """Return the recipe, with the calls made; without them if they are too many."""
        made, calls = self.asked.made, self.plan.made
        if made is None or len(calls) > MOST_PLANNED:
            return made
        return msgspec.structs.replace(made, asked=msgspec.structs.replace(made.asked, calls=calls))

    def _reply(self, found: Found) -> Swept:
        asked, places = self.asked, self.asked.places
        return Swept(
            site=places.site,
            over=places.over,
            places=places.along,
            texts=tuple(self.runtime.tokenizer.text_of(token) for token in asked.line),
            edit=spell(asked.request.edit, asked.request.noise, source_of(asked.request.into)),
            measured=found.measured(places.shape, self.source_values, asked.request.into),
            mode=self.mode,
            seed=asked.request.seed,
            computed=len(found.computed),
            rechecked=tuple(found.rechecked),
            notes=tuple(found.notes),
            in_pairs=places.in_pairs,
            windows=tuple(places.windows.items()),
            into=asked.request.into,
            recipe=asked.recipe,
            made=self._made(),
        )


# Sweep one prompt pair; the clean prompt may run in the same batch as the cells patched from it.

SOURCES_RECHECKED: Final = 0.25  # the share of joined clean prompts that run again alone, drawn by the seed


class PairSweeping(SweepJob):
    """Sweep one prompt, or a prompt pair. For the first of several pairs both prompts run alone; for a later pair the
    clean prompt may run in the same batch as the cells, if these fit into one pass."""

    def __init__(self, runtime: Runtime, session: Session, asked: CheckedSweep, together: Together) -> None:
        super().__init__(runtime, session, asked, together)
        self._awaited = False  # the clean prompt has not run yet

    def _source_line(
        self, room: Reservation, taps: tuple[Tap, ...], tokens: tuple[int, ...]
    ) -> Generator[Blocked | None, None, RunLine | None]:
        self._awaited = self.mode == "fast" and self._may_join(tokens)
        return None if self._awaited else (yield from super()._source_line(room, taps, tokens))

    def _may_join(self, tokens: tuple[int, ...]) -> bool:
        asked, request, cells = self.asked, self.asked.request, self.cells
        if request.pair == 0 or asked.finished or request.edit is not None or request.noise is not None:
            return False
        if self.together.packing is None or len(tokens) != len(asked.line) or tokens == asked.line:
            return False
        if asked.places.in_pairs or not all(map(takes_one_row, cells)):
            return False
        length, first = len(tokens), _first_other(tokens, asked.line)
        rows = [length - row for _, row in map(place_of, cells) if row >= first]
        return length - first + sum(rows) <= CHUNK_ROWS

    def _at_once(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        if not self._awaited:
            yield from super()._at_once(room, edits, cells, found)
            return
        assert self.asked.source is not None
        front = self.together.front(edits.base, self.plan)
        rows_nD = front.embedded(self.asked.source, _first_other(self.asked.source, self.asked.line))
        joined = None if rows_nD is None else JoinedSource(edits.base, rows_nD)
        if joined is None or not (yield from self._has_room(room, joined)):
            yield from self._run_source(room, edits)
            yield from super()._at_once(room, edits, cells, found)
            return
        yield from self._run_chunk(room, front, joined.lines(cells), found)
        edits.patch_from(joined.line(self.asked.source, self.asked.places.taps.values()))
        computed = set(found.computed)
        self._tell([cell.number for cell in cells if cell.number not in computed], found)

    def _has_room(self, room: Reservation, joined: JoinedSource) -> Generator[Blocked | None, None, bool]:
        """Reserve the memory of a clean prompt in the batch. Return False without room: alone it needs less."""
        try:
            yield from room.take(joined.nbytes)
        except (SlabFull, OverQuota):
            return False
        return True

    def _run_source(self, room: Reservation, edits: CellEdits) -> Pieces:
        """Run the clean prompt alone after all, for the cells that are still to be computed, and take its metrics."""
        if not self._awaited:
            yield from super()._run_source(room, edits)
            return
        assert self.asked.source is not None
        taps = tuple(self.asked.places.taps.values())
        source = yield from self._reserved(room, taps, self.asked.source, residuals=False)
        edits.patch_from(source)
        self.source_values, self._awaited = self.asked.metrics.of(source.logits_V), False

    def _recheck(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        among = self.source_values
        if self._awaited and among is not None and self._draws_source():
            yield from self._run_source(room, edits)
            assert self.source_values is not None
            found.compare(self.source_values, among)
        yield from super()._recheck(room, edits, cells, found)

    def _draws_source(self) -> bool:
        return random.Random(f"source {self.asked.request.seed} {self.asked.request.pair}").random() < SOURCES_RECHECKED

    def _take(self, values: Mapping[int, Values], found: Found) -> None:
        self.source_values = values.get(SOURCE, self.source_values)
        super()._take({number: of_cell for number, of_cell in values.items() if number != SOURCE}, found)

    def _tell(self, cells: Sequence[int], found: Found) -> None:
        super()._tell([number for number in cells if number != SOURCE], found)


def _first_other(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Return the first position at which two sequences of equal length differ."""
    return next(at for at, (one, other) in enumerate(zip(tokens, others, strict=True)) if one != other)


# The ways to compute a sweep. `ByEditedLines` is the sweep's own; other methods add theirs with `way_to_sweep`.

_OTHERS: Final[list[type[SweepWay]]] = []


class SweepWay:
    """A way to compute the sweeps that it takes, and its refusals. An engine has one of each, made at its first
    sweep."""

    reads_source: ClassVar[bool] = True  # a sweep without an edit needs a prompt to patch from
    in_modules: ClassVar[str | None] = None  # why added modules are refused; None where they are not

    def __init__(self, together: Together) -> None:
        self.together = together

    def takes(self, request: Sweep) -> bool:
        """Return whether it computes this sweep: only one way takes a request."""
        raise NotImplementedError

    def check_lines(self, request: Sweep, metrics: Metrics, line: int, source: int | None) -> None:
        """Refuse a sweep of so many tokens, before its places are known. Raises errors of the domain."""

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Refuse places that it cannot compute. Raises UsageError."""
        for tap in places.taps.values():
            if self.in_modules is not None and isinstance(tap.layout, FeatureLayout):
                raise UsageError(
                    f"{self.in_modules} the model's own points, and {tap.site} is an added module: sweep it instead."
                )

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        """Begin the sweep. Its refusals come here, not in its first step."""
        raise NotImplementedError


class ByEditedLines(SweepWay):
    """The sweep's own way, which takes what no other does."""

    def takes(self, request: Sweep) -> bool:
        return True

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Raise UsageError where no axis is named."""
        if not request.over:
            raise UsageError("A sweep goes over one axis at least, such as layer.")

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        return PairSweeping(runtime, session, asked, self.together).steps(workspace)


def way_to_sweep(way: type[SweepWay]) -> type[SweepWay]:
    """Register this way for the sweeps that it takes."""
    _OTHERS.append(way)
    return way


def every_way(together: Together) -> list[SweepWay]:
    """Return every way to sweep, except those of methods that are left out; the sweep's own is last."""
    others = (way for way in _OTHERS if not any(method.has(way.__module__) for method in troubles()))
    return [way(together) for way in (*others, ByEditedLines)]
