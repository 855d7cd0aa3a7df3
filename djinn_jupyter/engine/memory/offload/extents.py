"""Free-space accounting of a range of bytes. Knows neither the contents nor the medium."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from djinn_jupyter.engine.system.faults import InvariantError


class Extents:
    """The free runs of [0, capacity): first fit, adjacent runs merged.

    Invariants: free runs do not touch or overlap, and end at or before the capacity; a verb that raises has changed
    nothing."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []  # (start, end), in order

    @property
    def free_bytes(self) -> int:
        return sum(end - start for start, end in self._free)

    @property
    def used_end(self) -> int:
        """The end of the last taken run."""
        if self._free and self._free[-1][1] == self.capacity:
            return self._free[-1][0]
        return self.capacity

    def allocate(self, size: int) -> int | None:
        """Take `size` bytes and return their start; None where no free run is long enough."""
        for index, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[index : index + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def take_at(self, start: int, size: int) -> None:
        """Take exactly [start, start + size). Raises InvariantError unless it is free."""
        index = bisect_left(self._free, (start + 1, 0)) - 1
        if index < 0 or self._free[index][1] < start + size:
            raise InvariantError(f"Bytes [{start}, {start + size}) are taken already.")
        first, end = self._free[index]
        parts = [(first, start), (start + size, end)]
        self._free[index : index + 1] = [(a, b) for a, b in parts if a < b]

    def free(self, start: int, size: int) -> None:
        end = start + size
        index = bisect_left(self._free, (start, end))
        before = self._free[index - 1] if index else (0, -1)
        after = self._free[index] if index < len(self._free) else (self.capacity, self.capacity)
        if before[1] > start or after[0] < end or end > self.capacity:
            raise InvariantError(f"Bytes [{start}, {end}) are free already, or outside [0, {self.capacity}).")
        if after[0] == end and index < len(self._free):
            end = after[1]
            del self._free[index]
        if before[1] == start:
            start = before[0]
            del self._free[index - 1]
        insort(self._free, (start, end))

    def resize(self, capacity: int) -> None:
        """Set another capacity. Raises InvariantError if it would cut the last taken run."""
        if capacity < self.used_end:
            raise InvariantError(f"A capacity of {capacity} is too short: bytes up to {self.used_end} are taken.")
        used_end = self.used_end
        if used_end < self.capacity:
            self._free.pop()
        if used_end < capacity:
            self._free.append((used_end, capacity))
        self.capacity = capacity

    def check(self, taken: Iterable[tuple[int, int]]) -> None:
        """Raise InvariantError unless the runs `taken` (start, size) and the free ones cover each byte exactly once."""
        runs = sorted([*((start, start + size) for start, size in taken), *self._free])
        at = 0
        for start, end in runs:
            if start != at:
                raise InvariantError(f"Bytes from {min(at, start)} to {max(at, start)} are in two places, or in none.")
            at = end
        if at != self.capacity:
            raise InvariantError(f"Bytes from {at} to {self.capacity} are in no place.")
