"""Batches that fit into the budget: of one that does not, the first half is tried, down to one prompt."""

from __future__ import annotations

from collections.abc import Generator

from djinn_jupyter.engine.requests.workspace import Reservation
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.errors import OverQuota, SlabFull
from djinn_jupyter.methods.datasets.engine.batches import Batches, Prompts


class FittingBatches:
    """All prompts once, a batch at a time. `beside` are the bytes that a batch takes beside its pass."""

    def __init__(self, batches: Batches, prompts: Prompts, room: Reservation, beside: int = 0) -> None:
        self._batches, self._prompts, self._room, self._beside = batches, prompts, room, beside
        self._left = batches.of(prompts)
        self._waiting = next(self._left, None)

    def take(self) -> Generator[Blocked | None, None, tuple[list[int], int] | None]:
        """Take the memory of the next batch, or of as many of its first prompts as find some. Return their numbers, and
        the bytes; None after the last. Raises SlabFull where one prompt alone finds none."""
        waiting = self._waiting
        if waiting is None:
            return None
        count = len(waiting)
        while True:
            size = self._bytes_of(waiting[:count])
            try:
                yield from self._room.take(size)
            except (SlabFull, OverQuota):
                if count == 1:
                    raise
                count = (count + 1) // 2
            else:
                self._waiting = waiting[count:] or next(self._left, None)
                return waiting[:count], size

    def _bytes_of(self, batch: list[int]) -> int:
        rows = len(batch) * max(len(self._prompts[number]) for number in batch)
        return self._batches.held_bytes(rows) + self._beside
