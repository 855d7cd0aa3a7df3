"""One session's keys and values in one page group: its page table and, while it runs, its working copy.

Shapes: H key-value heads, q new rows, R rows returned, D features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.pages import PageTable, WorkingCopy
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import IllegalMove, SlabFull


class GroupCache:
    """The rows of all layers of a group for the positions [table.first, written).

    Invariants: after `flush` every row written is in its page; `write` returns the same bits with and without a working
    copy; rows at and beyond the committed length may be dead for some layers, and only the caller knows for which.
    """

    slack_positions = 256  # a working copy is made longer than needed by this, or by a quarter of the need if more

    def __init__(self, table: PageTable, session: object, written: int = 0) -> None:
        self.slab = table.slab
        self.geometry = table.slab.geometry
        self.table = table
        self.session = session
        self.written = written
        self.known_from = 0  # rows before it are missing, though their page may exist
        self.working: WorkingCopy | None = None

    def check_enterable(self, length: int) -> None:
        """Raise IllegalMove unless a pass entered at `length` finds the rows of its window."""
        first = max(self.table.first, self.known_from)
        if length and self.geometry.first_needed(length) < first:
            raise IllegalMove(
                f"A pass cannot enter at position {length}: the window's rows before {first} were given up."
            )

    def prepare(self, start: int, end: int, *, once: bool = False) -> None:
        """Make a working copy for a pass over [start, end) if the budget allows, one that can grow unless it is needed
        only `once`; else each layer gathers its rows."""
        first = self.geometry.first_needed(start)
        if self.working is not None:
            if self.working.covers(first, end) and self.working.capacity <= 4 * self._roomy(end - first):
                self.slab.budget.touch(self.working)
                return
            self.drop_working()
        roomy = () if once else (self._roomy(end - first),)
        for capacity in (*roomy, end - first):
            try:
                self.working = WorkingCopy(self.table, first, capacity, self.session, self.drop_working)
            except SlabFull:
                continue
            self.working.gather(first, min(self.written, first + capacity))
            return

    def take_working(self, other: GroupCache) -> None:
        """Take the memory of another cache's working copy, where it has one, for the rows of this one, which is empty.
        The other's rows stay in its pages."""
        other.flush()
        if other.working is not None:
            self.working = other.working.handed_on(self.table, 0, self.session, self.drop_working)
            other.working = None

    def _roomy(self, need: int) -> int:
        size = self.geometry.page_positions
        return -(-(need + max(self.slack_positions, need // 4)) // size) * size

    def write(self, slot: int, k_1HqD: Tensor, v_1HqD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write new rows of one layer from `start` on. Return the keys and values attention reads: k_1HRD, v_1HRD."""
        end = start + k_1HqD.shape[2]
        if self.working is None:
            read = self._write_through(slot, k_1HqD, v_1HqD, start, end)
        else:
            read = self.working.write(slot, k_1HqD, v_1HqD, start, end)
        if end > self.written:
            self.written = end
        return read

    def _write_through(self, slot: int, k_1HqD: Tensor, v_1HqD: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Write, where there is no working copy, to the pages at once, then gather the rows that attention reads."""
        if not self.table.is_private(start, end):
            raise InvariantError(f"Rows [{start}, {end}) came without a reserve.")
        layer = self.geometry.layers[slot].cache_layer
        key_view, value_view = self.slab.key_view, self.slab.value_view
        for p in self.table.pieces(start, end):
            here = slice(p.start - start, p.start - start + p.count)
            key_view(p.page, layer).narrow(1, p.row, p.count).copy_(k_1HqD[0, :, here])
            value_view(p.page, layer).narrow(1, p.row, p.count).copy_(v_1HqD[0, :, here])
            self.slab.wrote(p.page)
        return self._gather(slot, self.geometry.first_needed(start), end)

    def append(self, start: int, count: int, runs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Write `count` positions of all layers from `start` on to their pages: a run's keys [n, H, count, D],
        values."""
        self.drop_working()
        for piece in self.table.pieces(start, start + count):
            for number, pair in enumerate(runs):
                for paged, rows in zip(self.slab.run_views(piece.page, number), pair, strict=True):
                    here = rows.narrow(2, piece.start - start, piece.count)
                    paged.narrow(2, piece.row, piece.count).copy_(here)
            self.slab.wrote(piece.page)
        self.written = max(self.written, start + count)

    def read(self, slot: int, end: int) -> tuple[Tensor, Tensor]:
        """Return the rows of one layer before `end`, k_1HRD and v_1HRD, of a group without a window."""
        if self.working is None:
            return self._gather(slot, 0, end)
        return self.working.read(slot, end)

    def _gather(self, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        layer = self.geometry.layers[slot].cache_layer
        pieces = list(self.table.pieces(start, end))
        keys = torch.cat([self.slab.key_view(p.page, layer).narrow(1, p.row, p.count) for p in pieces], dim=1)
        values = torch.cat([self.slab.value_view(p.page, layer).narrow(1, p.row, p.count) for p in pieces], dim=1)
        return keys.unsqueeze(0), values.unsqueeze(0)

    def flush(self) -> None:
        """Write the working copy's dirty rows to the pages."""
        if self.working is not None:
            self.working.flush()

    def drop_working(self) -> None:
        if self.working is not None:
            self.working.flush()
            self.working.release()
            self.working = None

    def expect_rows(self, first: int, end: int) -> None:
        """Count the rows [first, end), which are about to be put into its pages, as written."""
        self.known_from, self.written = first, end

    def adopt(self, pages: Sequence[int], *, behind: int, written: int, known_from: int) -> None:
        """Fill an empty group with `pages`, which hold the rows [known_from, written)."""
        self.table.adopt(pages, behind)
        self.expect_rows(known_from, written)

    def fork(self, session: object) -> GroupCache:
        """Return the same rows for another session, by reference to the same pages."""
        self.flush()
        twin = type(self)(self.table.share(), session, self.written)
        twin.known_from = self.known_from
        return twin

    def rewind(self, length: int) -> None:
        """Go back to a length at which a pass can enter. Rows stay; at 0 a table without its first rows is emptied."""
        self.flush()
        if not length and max(self.table.first, self.known_from):
            self.truncate(0)
            self.known_from = 0

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on and free the pages wholly beyond it."""
        self.flush()
        self.written = min(self.written, length)
        if self.working is not None:
            self.working.truncated(length)
        self.table.truncate(length)

    def release_before(self, position: int) -> None:
        """Free the pages wholly before `position`."""
        self.flush()
        self.table.release_before(position)

    def free(self) -> None:
        if self.working is not None:
            self.working.release()
            self.working = None
        self.table.free()
        self.written = self.known_from = 0

    def check(self, contents: bool = False) -> None:
        """Raise InvariantError unless the table covers the rows written; with `contents`, also the working copy."""
        self.table.check()
        if self.written > self.table.end:
            raise InvariantError(f"Rows were written up to {self.written}; there are pages up to {self.table.end}.")
        if contents and self.working is not None and self.working.differs(self.written):
            raise InvariantError("The working copy differs from the pages.")


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """The rows of one layer in its group."""

    group: GroupCache
    number: int

    def write(self, k_1HqD: Tensor, v_1HqD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        return self.group.write(self.number, k_1HqD, v_1HqD, start)

    def write_keys(self, k_1HqD: Tensor, start: int) -> Tensor:
        """Write rows of a layer without values. Return all of its rows, k_1HRD."""
        return self.group.write(self.number, k_1HqD, k_1HqD[..., :0], start)[0]

    def read_keys(self, end: int) -> Tensor:
        return self.group.read(self.number, end)[0]
