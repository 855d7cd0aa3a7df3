"""Places for several sizes at once, in whichever tier: all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from djinn_jupyter.errors import TierFull

Place = TypeVar("Place")


def all_or_none(sizes: Sequence[int], allocate: Callable[[int], Place], free: Callable[[Place], None]) -> list[Place]:
    """Return a place for each size. Raises TierFull, and has freed the places taken until then."""
    taken: list[Place] = []
    try:
        for size in sizes:
            taken.append(allocate(size))
    except TierFull:
        for place in taken:
            free(place)
        raise
    return taken
