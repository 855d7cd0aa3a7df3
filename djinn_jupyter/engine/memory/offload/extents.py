"""Runs of bytes: which of a range are free (`Extents`), and those in memory that copies go between (`Span`). Knows
nothing of the contents."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

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


WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """`nbytes` of `memory`, a contiguous uint8 tensor of any shape, starting at byte `start`."""

    memory: Tensor
    start: int
    nbytes: int

    def view(self) -> Tensor:
        """Return the bytes as a view, `uint8[nbytes]`."""
        with torch.inference_mode(False):
            return self.memory.view(-1)[self.start : self.start + self.nbytes]

    def goes_on_in(self, other: Span) -> bool:
        return self.memory is other.memory and self.start + self.nbytes == other.start

    def with_more(self, nbytes: int) -> Span:
        return Span(memory=self.memory, start=self.start, nbytes=self.nbytes + nbytes)


def in_words(source: Span, target: Span) -> tuple[Tensor, Tensor]:
    """Return both sides of a copy, as `int64[nbytes / 8]` where aligned: on a CPU 1.1 times as fast as bytes."""
    sides = (source.view(), target.view())
    if any(side.data_ptr() % WORD_BYTES for side in sides) or source.nbytes % WORD_BYTES:
        return sides
    with torch.inference_mode(False):
        return sides[0].view(torch.int64), sides[1].view(torch.int64)


def coalesced(copies: Iterable[tuple[Span, Span]]) -> Iterator[tuple[Span, Span]]:
    """Yield the copies (source, target), merging those that are adjacent on both sides."""
    pending: tuple[Span, Span] | None = None
    for source, target in copies:
        if pending and pending[0].goes_on_in(source) and pending[1].goes_on_in(target):
            pending = (pending[0].with_more(source.nbytes), pending[1].with_more(target.nbytes))
            continue
        if pending:
            yield pending
        pending = (source, target)
    if pending:
        yield pending
