"""A sweep of paths: each cell's value is seen by the receivers alone, and all else between stands as it was."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests.workspace import Reservation
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces
from djinn_jupyter.engine.wavefront.wavefront import JoiningLine, Wavefront
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.paths.engine.path_lines import Path, PathLines
from djinn_jupyter.methods.paths.engine.paths import PathsAlone
from djinn_jupyter.methods.paths.engine.receivers import Receivers, place_of
from djinn_jupyter.methods.sweep.engine.cell_edits import CellEdit, CellEdits, first_other
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.found import Found
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.methods.sweep.engine.sweep import CHUNK_ROWS, COMPARED, Sweeping
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import Swept, SweptEdit


class PathEdits(CellEdits):
    """The edits of senders. One that reaches no receiver changes nothing."""

    def __init__(
        self, edit: SweptEdit | None, seed: int, base: RunLine, source: RunLine | None, receivers: Receivers
    ) -> None:
        super().__init__(edit, seed, base, source)
        self.receivers = receivers

    def of(self, cell: Cell, *, always: bool = False) -> CellEdit | None:
        if not always and not self.receivers.reached_from(cell.spots[0].tap):
            return None
        return super().of(cell, always=always)

    def path(self, cell: Cell) -> Path | None:
        """Return a cell's path; None where it changes nothing."""
        edited = self.of(cell)
        if edited is None:
            return None
        tap = edited.tap
        start = first_other(tap.read(edited.raw), tap.read(self.base.raw[tap.site]))
        return None if start is None else Path(number=cell.number, sender=tap, raw=edited.raw, start=start)


class PathSweeping(Sweeping):
    """One sweep of paths to the receivers that were asked for."""

    def __init__(
        self, runtime: Runtime, session: Session, asked: CheckedSweep, together: Together, receivers: Receivers
    ) -> None:
        super().__init__(runtime, session, asked, together)
        self.receivers = receivers
        self.one_path = PathsAlone(self.alone, receivers)

    def _kept_taps(self) -> tuple[Tap, ...]:
        return tuple({tap.site: tap for tap in (*super()._kept_taps(), *self.receivers.taps)}.values())

    def _edits(self, base: RunLine, source: RunLine | None) -> PathEdits:
        return PathEdits(self.asked.edit, self.asked.seed, base, source, self.receivers)

    def _why_family_alone(self) -> Generator[Blocked | None, None, str | None]:
        """Return why paths cannot share passes; None where they can. Between senders and receivers no layer hands on
        its keys."""
        if self.runtime.forward.anatomy.mappings:
            return "its layers read the keys of others, which paths do not hand on"
        return (yield from super()._why_family_alone())

    def _is_computed(self, edits: CellEdits, cell: Cell) -> Generator[Blocked | None, None, bool]:
        yield from ()
        return edits.of(cell) is not None

    def _logits(self, edits: CellEdits, edited: CellEdit) -> Generator[Blocked | None, None, Tensor]:
        return (yield from self.one_path.logits(edits.base, edited.tap, edited.raw))

    def _at_once(self, room: Reservation, edits: CellEdits, cells: Sequence[Cell], found: Found) -> Pieces:
        assert isinstance(edits, PathEdits)
        front = self.together.front(edits.base, self.plan)
        several = PathLines(self.runtime.forward, edits.base, self.receivers, self.together.axes, self.plan)
        yield from room.take(several.frozen_bytes)
        chunk: list[Path] = []
        compared = 0
        for cell in sorted(cells, key=lambda cell: place_of(cell.spots[0].tap)):
            path = edits.path(cell)
            compared += edits.nbytes(cell)
            if compared > COMPARED:
                compared = 0
                yield None
            chunk += [] if path is None else [path]
            if len(chunk) * len(edits.base.tokens) >= CHUNK_ROWS:
                yield from self._run_paths(room, front, several, chunk, found)
                chunk = []
        if chunk:
            yield from self._run_paths(room, front, several, chunk, found)
        computed = set(found.computed)
        self._tell([cell.number for cell in cells if cell.number not in computed], found)

    def _run_paths(
        self, room: Reservation, front: Wavefront, several: PathLines, paths: Sequence[Path], found: Found
    ) -> Pieces:
        """Run paths to their receivers together, and from there on as lines of the wavefront."""
        size = several.expected_bytes(paths)
        yield from room.take(size)
        lines: list[JoiningLine] = []
        for found_or_none in several.run(paths):
            lines = found_or_none or lines
            yield None
        self.runtime.counters.count_layers(several.count())
        yield from self._run_chunk(room, front, lines, found)
        room.give_back(size)

    def _reply(self, found: Found) -> Swept:
        return msgspec.structs.replace(super()._reply(found), receivers=tuple(map(str, self.receivers.sites)))
