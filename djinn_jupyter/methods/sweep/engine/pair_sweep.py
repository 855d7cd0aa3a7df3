"""A sweep of a pair of lines, whose source may run among the cells that are patched from it."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from typing import Final

from djinn_jupyter.engine.interventions.metric import Values
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests.workspace import Reservation
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces
from djinn_jupyter.errors import OverQuota, SlabFull
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.sweep.engine.cell_edits import CellEdits
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.found import Found
from djinn_jupyter.methods.sweep.engine.joined_source import SOURCE, JoinedSource, is_served, place_of
from djinn_jupyter.methods.sweep.engine.places import Cell
from djinn_jupyter.methods.sweep.engine.sweep import CHUNK_ROWS, Sweeping
from djinn_jupyter.methods.sweep.engine.together import Together

SOURCES_RECHECKED: Final = 0.25  # the share of joined sources that run again alone, drawn by the seed


class PairSweeping(Sweeping):
    """One sweep of one line, or of a pair. The first pair of several has both lines run alone; of a later one the
    source joins the cells, where these fit into one pass."""

    def __init__(self, runtime: Runtime, session: Session, asked: CheckedSweep, together: Together) -> None:
        super().__init__(runtime, session, asked, together)
        self._awaited = False  # the source has not run yet

    def _source_line(
        self, room: Reservation, taps: tuple[Tap, ...], tokens: tuple[int, ...]
    ) -> Generator[Blocked | None, None, RunLine | None]:
        self._awaited = self.mode == "fast" and self._may_join(tokens)
        return None if self._awaited else (yield from super()._source_line(room, taps, tokens))

    def _may_join(self, tokens: tuple[int, ...]) -> bool:
        asked, cells = self.asked, self.cells
        if asked.pair == 0 or asked.finished or asked.edit is not None or asked.noise is not None:
            return False
        if self.together.packing is None or len(tokens) != len(asked.line) or tokens == asked.line:
            return False
        if asked.places.in_pairs or not all(map(is_served, cells)):
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
        """Take the memory of a joined source. Return False where there is none: alone it needs less."""
        try:
            yield from room.take(joined.nbytes)
        except (SlabFull, OverQuota):
            return False
        return True

    def _run_source(self, room: Reservation, edits: CellEdits) -> Pieces:
        """Run the source alone after all, for the cells that are computed from here on, and take its metrics."""
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
        return random.Random(f"source {self.asked.seed} {self.asked.pair}").random() < SOURCES_RECHECKED

    def _take(self, values: Mapping[int, Values], found: Found) -> None:
        self.source_values = values.get(SOURCE, self.source_values)
        super()._take({number: of_cell for number, of_cell in values.items() if number != SOURCE}, found)

    def _tell(self, cells: Sequence[int], found: Found) -> None:
        super()._tell([number for number in cells if number != SOURCE], found)


def _first_other(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Return the first position at which two lines of equal length differ."""
    return next(at for at, (one, other) in enumerate(zip(tokens, others, strict=True)) if one != other)
