"""The columns of prompts of one length that begin together. Their runs go on in these, and no row is copied there from
its pages, as rows are that begin at other lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.session.seats import Seat
from djinn_jupyter.engine.wavefront.column_memory import KeptMemory
from djinn_jupyter.engine.wavefront.columns import Columns, capacity_for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedPrompts:
    """`seats` in the order of their lines, and their columns."""

    seats: Sequence[Seat]
    columns: Columns

    @staticmethod
    def capacity(seats: Sequence[Seat]) -> int | None:
        """Return how many columns these prompts and their new tokens take; None where they do not lie alike, or no
        token comes behind the first."""
        lengths = [len(seat.session.tokens) for seat in seats]
        to_come = max((seat.to_come for seat in seats), default=0) - 1  # the prompt's own pass has the first
        if len(seats) < 2 or len(set(lengths)) > 1 or to_come < 1:
            return None
        return capacity_for(lengths, to_come)

    @classmethod
    def of(cls, memory: KeptMemory, seats: Sequence[Seat], capacity: int) -> JoinedPrompts:
        """Return empty columns for these prompts, in memory that is the caller's to give back. Raises SlabFull."""
        return cls(seats=seats, columns=Columns(memory.take(len(seats) * capacity), [0] * len(seats), capacity))

    def part(self, seats: Sequence[Seat]) -> Columns | None:
        """Return the columns of these seats; None where they do not lie beside each other."""
        first = self.seats.index(seats[0])
        behind = first + len(seats)
        return self.columns.part(first, behind) if list(seats) == list(self.seats[first:behind]) else None

    @property
    def whole(self) -> bool:
        """True where every seat has its pass."""
        return all(seat.outcome is not None for seat in self.seats)
