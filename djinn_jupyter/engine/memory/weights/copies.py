"""The log of single copies: block, bytes, start, duration, and how long computing waited for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT = 8192


@dataclass(slots=True, kw_only=True, eq=False)
class BlockCopy:
    """One copy of a block. `begun` is in seconds since the epoch; `stalled` is the seconds computing waited for it,
    None until the block is first waited for."""

    block: int
    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    stalled: float | None = None
    number: int = 0

    def note_stall(self, seconds: float) -> None:
        """Note the time that the first computation with it waited."""
        if self.stalled is None:
            self.stalled = seconds


class Copies:
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
