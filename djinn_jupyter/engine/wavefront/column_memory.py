"""The device memory of columns, and what of it is kept for the next ones.

The system takes freed memory back, and the first touch of fresh memory takes about as long as attention over it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, LayerRun
from djinn_jupyter.engine.memory.kv.segments import uninitialised

MOST_KEPT: Final = 2**28  # bytes without a use; more are returned at once
MOST_WASTE: Final = 4  # times the places needed

Pair = tuple[Tensor, Tensor]


class ColumnMemory:
    """Uninitialised memory of every layer for the rows of `places`, lines times columns."""

    def __init__(self, geometry: CacheGeometry, places: int, device: torch.device) -> None:
        self.geometry, self.places, self.device = geometry, places, device
        self.nbytes = bytes_of(geometry, places)
        self._runs = [[_flat(run, places, group.device or device) for run in group.runs] for group in geometry.groups]

    def runs(self, lines: int, capacity: int) -> list[list[Pair]]:
        """Return keys [n, B, H, C, Dk] and values [n, B, H, C, Dv] of each run of each group, for no more places than
        there are."""
        return [
            [_shaped(pair, run, lines, capacity) for run, pair in zip(group.runs, pairs, strict=True)]
            for group, pairs in zip(self.geometry.groups, self._runs, strict=True)
        ]


class KeptMemory:
    """Memory of columns that one part of the budget takes, and the last that it gave back: unused until it is taken
    again, released when anything else needs it."""

    def __init__(self, geometry: CacheGeometry, device: torch.device, budget: Budget) -> None:
        self._geometry, self._device, self._budget = geometry, device, budget
        self._kept: ColumnMemory | None = None
        budget.join(self, Part(name="columns kept", held=self._bytes, idle=self._bytes, release=self.release))

    def take(self, places: int) -> ColumnMemory:
        """Take memory for at least so many places, which counts as the caller's then. Raises SlabFull, or what the
        device raises; nothing is taken then."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if places <= kept.places <= MOST_WASTE * places:
                return kept
            self._budget.give_back(kept.nbytes)
            del kept
        size = bytes_of(self._geometry, places)
        self._budget.take(size, by=self)
        try:
            return ColumnMemory(self._geometry, places, self._device)
        except BaseException:
            self._budget.give_back(size)
            raise

    def give_back(self, memory: ColumnMemory) -> None:
        """Keep memory that is no longer used, unless it is large."""
        self.release()
        if memory.nbytes <= MOST_KEPT:
            self._kept = memory
        else:
            self._budget.give_back(memory.nbytes)

    def release(self) -> int:
        """Return the kept memory to the device; return how many bytes these were."""
        size, self._kept = self._bytes(), None
        self._budget.give_back(size)
        return size

    def _bytes(self) -> int:
        return 0 if self._kept is None else self._kept.nbytes


def bytes_of(geometry: CacheGeometry, places: int) -> int:
    """Return the bytes that the rows of so many places take."""
    return places * sum(group.position_bytes for group in geometry.groups)


def _flat(run: LayerRun, places: int, device: torch.device) -> Pair:
    rows = run.layers * run.kv_heads * places
    keys, values = (uninitialised((rows * width,), run.dtype, device) for width in (run.key_dim, run.value_dim))
    return keys, values


def _shaped(pair: Pair, run: LayerRun, lines: int, capacity: int) -> Pair:
    rows = run.layers * lines * run.kv_heads * capacity
    shape = (run.layers, lines, run.kv_heads, capacity)
    keys, values = pair
    return keys[: rows * run.key_dim].view(*shape, run.key_dim), values[: rows * run.value_dim].view(
        *shape, run.value_dim
    )
