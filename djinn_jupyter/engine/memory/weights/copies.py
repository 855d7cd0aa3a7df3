"""The log of single copies: block, bytes, start, duration, how long computing waited for it, and for how long something
was computed meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 8192


@dataclass(slots=True, kw_only=True, eq=False)
class BlockCopy:
    """One copy of a block. `begun` is in seconds since the epoch, `began` on the clock of `Computed`; `stalled` is the
    seconds computing waited for it, None until the block is first waited for."""

    block: int
    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    began: float = 0.0
    stalled: float | None = None
    number: int = 0

    def note_made(self, *, began: float, seconds: float, begun: float) -> None:
        """Note when it was made, on both clocks, and how long that took."""
        self.began, self.seconds, self.begun = began, seconds, begun

    def note_stall(self, seconds: float) -> None:
        """Note the time that the first computation with it waited."""
        if self.stalled is None:
            self.stalled = seconds


class ArrivedCopies:
    """The last `kept` copies that have arrived, numbered from 1 in order of arrival. One thread adds; another may read
    concurrently."""

    def __init__(self, kept: int = KEPT) -> None:
        self._arrived: deque[BlockCopy] = deque(maxlen=kept)
        self._count = 0

    def add(self, copy: BlockCopy) -> None:
        self._count += 1
        copy.number = self._count
        self._arrived.append(copy)

    def since(self, number: int) -> list[BlockCopy]:
        """Return the copies with numbers above `number`, oldest first."""
        return [copy for copy in self._arrived.copy() if copy.number > number]


class Computed:
    """The last `kept` times in which a pass computed, in their order: it neither waited for weights nor fetched any."""

    def __init__(self, kept: int = 2 * KEPT) -> None:
        self._begins: deque[float] = deque(maxlen=kept)
        self._ends: deque[float] = deque(maxlen=kept)

    def add(self, begun: float, ended: float) -> None:
        self._begins.append(begun)
        self._ends.append(ended)

    def during(self, copies: Sequence[BlockCopy]) -> list[float]:
        """Return for each copy the seconds in which something was computed while it was made."""
        begins, ends = list(self._begins), list(self._ends)
        return [_shared(copy.began, copy.began + copy.seconds, begins, ends) for copy in copies]


def _shared(begun: float, ended: float, begins: Sequence[float], ends: Sequence[float]) -> float:
    first, last = bisect_left(ends, begun), bisect_left(begins, ended)
    return sum(min(ended, ends[at]) - max(begun, begins[at]) for at in range(first, last))
