"""The growth still allowed to the engine's parts of main memory. A configured limit is a bound, not existing memory:
Linux grants mappings that it cannot fill and kills the process that fills them, so nothing is mapped without room for
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from djinn_jupyter.machine import MainMemory, main_memory

HEADROOM: Final = 20  # a twentieth of the memory stays free for what a pass allocates, and for other programs
LEAST_HEADROOM: Final = 4  # but no more than a quarter of the memory available at the start
STALE_SECONDS: Final = 0.25  # a reading opens a dozen files, and pages are taken many at a time


class Growth:
    """One instance for all parts of an engine that lie in main memory. Their bytes count from the moment they are
    mapped, though the system counts them only once they are filled."""

    def __init__(
        self, read: Callable[[], MainMemory] = main_memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._parts: list[Callable[[], int]] = []
        found = read()
        self._begun = self._available = found.available
        self._taken_then, self._read_at = 0, clock()
        self._kept_free = min(found.total // HEADROOM, found.available // LEAST_HEADROOM)

    def add(self, taken: Callable[[], int]) -> None:
        """Add a part; `taken` returns how many bytes it has."""
        self._parts.append(taken)

    def left(self) -> int:
        """Return the bytes that may still be taken."""
        taken, now = sum(part() for part in self._parts), self._clock()
        if now - self._read_at >= STALE_SECONDS:
            self._read_at = now
            with suppress(OSError):  # where no file can be opened the last reading holds
                self._available, self._taken_then = self._read().available, taken
        left = min(self._begun - taken, self._available - (taken - self._taken_then))
        return max(0, left - self._kept_free)
