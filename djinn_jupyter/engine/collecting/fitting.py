"""Batches that fit into the budget: of one that does not, the first half is tried, down to one prompt."""

from __future__ import annotations

from collections.abc import Callable, Generator

from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.sweeps.workspace import Reservation
from djinn_jupyter.errors import SlabFull


def first_that_fit(
    room: Reservation, batch: list[int], bytes_of: Callable[[list[int]], int]
) -> Generator[Blocked | None, None, tuple[list[int], int]]:
    """Take the memory of the batch, or of as many of its first prompts as find some. Return these, and the bytes.
    Raises SlabFull where one prompt alone finds none."""
    count = len(batch)
    while True:
        size = bytes_of(batch[:count])
        try:
            yield from room.take(size)
        except SlabFull:
            if count == 1:
                raise
            count = (count + 1) // 2
        else:
            return batch[:count], size
