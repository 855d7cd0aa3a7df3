"""Path patching (Wang et al. 2022, Goldowsky-Dill et al. 2023), one path after the other, each alone; and sweeps of
paths.

A path takes two passes. In the first the sender has another value, the outputs of attention and MLP after it are those
of the unedited sequence, and the receivers' values are recorded. In the second these values replace the receivers', and
nothing else is held.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.controller import Completed, Target
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.wavefront import JoiningLine, Wavefront
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.common.engine.lines import LinesAlone, Recorded, RunLine
from djinn_jupyter.methods.paths.engine.path_lines import Path, PathLines
from djinn_jupyter.methods.paths.engine.receivers import Received, Receivers, place_of
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep, Found
from djinn_jupyter.methods.sweep.engine.edits import CellEdit, CellEdits, first_other
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.methods.sweep.engine.sweep import CHUNK_ROWS, COMPARED, SweepJob, SweepWay, way_to_sweep
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import Sweep, Swept, SweptEdit
from djinn_jupyter.wire.sites import Site


class PathsAlone:
    """Runs paths to `receivers` in the pages of the sweep's session, a pass at a time."""

    def __init__(self, alone: LinesAlone, receivers: Receivers) -> None:
        self.alone, self.receivers = alone, receivers

    def logits(self, line: RunLine, sender: Tap, raw: Tensor) -> Generator[Blocked | None, None, Tensor]:
        """Return the logits of the sequence where only the receivers see `raw` at `sender`."""
        received = yield from self._received(line, sender, raw)
        if not received:
            return line.logits_V
        first = min(one.receiver.boundary for one in received)
        hidden = self.alone.hidden(line, first)
        for one in received:
            if one.receiver.tap.boundary == first:
                hidden = one.receiver.put(hidden, one.met)
        frame = self._from(line, first, hidden, ())
        outcome = yield from self.alone.passed(frame, self.alone.plan(rules=received))
        assert isinstance(outcome, Completed)
        return outcome.logits_1V[0].clone()

    def _received(self, line: RunLine, sender: Tap, raw: Tensor) -> Generator[Blocked | None, None, list[Received]]:
        """Return the values of the receivers that the sender reaches, with everything else unchanged."""
        reached = self.receivers.reached_from(sender)
        if not reached:
            return []
        last = max(one.last_layer for one in reached)
        end = self.alone.runtime.resolve(Site(point="resid_post", layer=last))
        frozen = (block for layer in range(last + 1) for block in self.receivers.frozen_after(sender, layer))
        overrides = [Override(tap=block, raw=line.raw[block.site]) for block in frozen]
        first, hidden = sender.boundary, raw
        if first is None:
            first, hidden = sender.stage, self.alone.hidden(line, sender.stage)
            overrides.append(Override(tap=sender, raw=raw))
        met = {one.tap.site: Recorded(tap=one.tap) for one in reached}
        frame = self._from(line, first, hidden, tuple(overrides))
        plan = self.alone.plan(observers=met.values(), halts=[Target(tap=end, step=0)])
        yield from self.alone.passed(frame, plan)
        return [Received(receiver=one, met=value) for one in reached if (value := met[one.tap.site].raw) is not None]

    def _from(self, line: RunLine, boundary: int, hidden: Tensor, overrides: tuple[Override, ...]) -> Frame:
        if self.alone.from_the_start:
            entry = Override(tap=self.alone.borders()[boundary], raw=hidden)
            return Frame(tokens=line.tokens, committed=0, step=0, overrides=(*overrides, entry))
        return Frame(tokens=line.tokens, committed=0, step=0, boundary=boundary, hidden=hidden, overrides=overrides)


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


class PathSweeping(SweepJob):
    """One sweep of paths to the requested receivers."""

    def __init__(
        self, runtime: Runtime, session: Session, asked: CheckedSweep, together: Together, receivers: Receivers
    ) -> None:
        super().__init__(runtime, session, asked, together)
        self.receivers = receivers
        self.one_path = PathsAlone(self.alone, receivers)

    def _kept_taps(self) -> tuple[Tap, ...]:
        return tuple({tap.site: tap for tap in (*super()._kept_taps(), *self.receivers.taps)}.values())

    def _edits(self, base: RunLine, source: RunLine | None) -> PathEdits:
        return PathEdits(self.asked.request.edit, self.asked.request.seed, base, source, self.receivers)

    def _why_family_alone(self) -> Generator[Blocked | None, None, str | None]:
        """Return why paths cannot share passes; None where they can. Between senders and receivers no layer passes its
        keys on."""
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
        """Run paths to their receivers together, and from there on as sequences of the wavefront."""
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


# Sweeps with receivers, as a way to sweep: each cell is a path to them.


@way_to_sweep
class ByPaths(SweepWay):
    in_modules = "Paths lead from"

    def takes(self, request: Sweep) -> bool:
        return bool(request.receivers) and request.estimate is None

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        if request.windows or request.in_pairs:
            raise UsageError("A path has one sender a cell; leave windows and pairs of cells out.")
        receivers = Receivers.of(runtime, request.receivers, asked.places.taps.values())
        return PathSweeping(runtime, session, asked, self.together, receivers).steps(workspace)
