"""The books of single copies: which block, how many bytes, when, how fast, how long computing waited for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT = 8192


@dataclass(slots=True, kw_only=True, eq=False)
class Copy:
    """One copy of a block. `begun` in seconds since the epoch; `stalled`: seconds that computing waited for it, None
    while nobody has asked for the block."""

    block: int
    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    stalled: float | None = None
    number: int = 0


class Copies:
    """The last `kept` copies that have arrived, numbered from 1 in the order of their arrival. One thread adds, another
    may read meanwhile."""

    def __init__(self, kept: int = KEPT) -> None:
        self._arrived: deque[Copy] = deque(maxlen=kept)
        self._count = 0

    def add(self, copy: Copy) -> None:
        self._count += 1
        copy.number = self._count
        self._arrived.append(copy)

    def since(self, number: int) -> list[Copy]:
        """Those with higher numbers, oldest first."""
        return [copy for copy in self._arrived.copy() if copy.number > number]
