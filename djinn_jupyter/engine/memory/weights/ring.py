"""The ring: a few slots on the device through which a larger model's blocks stream, one layer ahead of computing.

Knows blocks by number, and learns their order from the passes it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.copy_engine import CopyEngine
from djinn_jupyter.engine.memory.weights.flat import flat_buffer
from djinn_jupyter.engine.memory.weights.host_weights import HostRun
from djinn_jupyter.errors import DjinnError


class RingBroken(DjinnError):
    """A slot does not hold the block it was taken for: a fault in the engine, found before it gives a wrong number."""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """Device memory for one block. `generation` counts how often it was filled; the next filling may begin after the
    mark `freed`."""

    number: int
    buffer: Tensor
    freed: Any
    owner: int | None = None
    generation: int = 0
    arrival: Any = None
    users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lease:
    """Permission to compute with a block until it is given back. `views` are its weights."""

    block: int
    slot: int
    generation: int
    views: tuple[Tensor, ...]


class BlockOrder:
    """The cyclic order in which blocks are computed, learned from the first pass that uses them all."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._seen: list[int] = []
        self._place: dict[int, int] = {}

    @property
    def learned(self) -> tuple[int, ...] | None:
        return tuple(self._seen) if self._place else None

    def note(self, block: int) -> None:
        """Note that this block is computed now. If a block recurs before all were seen (the pass was left or went
        back), learning starts again."""
        if self._place or self._seen[-1:] == [block]:
            return
        if block in self._seen:
            self._seen.clear()
        self._seen.append(block)
        if len(self._seen) == self._blocks:
            self._place = {seen: place for place, seen in enumerate(self._seen)}

    def after(self, block: int, count: int) -> list[int]:
        """Return the next `count` blocks; none before the order is known."""
        if not self._place:
            return []
        return [self._seen[(self._place[block] + ahead) % self._blocks] for ahead in range(1, count + 1)]

    def ahead(self, block: int, now: int) -> int:
        """Return how many blocks after `now` the block `block` is computed; 0 before the order is known."""
        return (self._place[block] - self._place[now]) % self._blocks if self._place else 0


class Ring:
    """Slots for `runs`, fewer slots than runs.

    Invariants: a slot holds its owner's bytes from their arrival until its next filling begins; a slot with users is
    not filled; a block is in at most one slot; a lease is valid while its slot has the same generation. `take` fetches
    a block that is in no slot, and waits for the arrival of one under way. `filled` counts the copies into slots,
    `late` those that began only when the block was needed.
    """

    def __init__(self, runs: Sequence[HostRun], slots: int, device: torch.device, copy_engine: CopyEngine) -> None:
        self.runs, self.copy_engine, self.order = tuple(runs), copy_engine, BlockOrder(len(runs))
        self._count, self._device = slots, device
        self._slots: list[Slot] = []
        self._views: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._last: int | None = None
        self.late = self.filled = 0
        self.open()

    def open(self) -> None:
        """Allocate the slots' memory, unless it is allocated."""
        if self._slots:
            return
        size = max(run.layout.nbytes for run in self.runs)
        freed = self.copy_engine.mark()
        self._slots = [
            Slot(number=number, buffer=flat_buffer(size, self._device), freed=freed) for number in range(self._count)
        ]

    def close(self) -> None:
        """Free the slots' memory. Raises RingBroken while a slot is in use."""
        if any(slot.users for slot in self._slots):
            raise RingBroken("The ring was closed while a layer was being computed.")
        self.settle()
        self._slots, self._views = [], {}

    def settle(self) -> None:
        """Order all copies under way before what is computed from here on. On the CPU this waits for them; on CUDA the
        computing stream will, and the host goes on."""
        for slot in self._slots:
            if slot.arrival is not None:
                self.copy_engine.wait(slot.arrival)

    @property
    def slot_bytes(self) -> int:
        return sum(slot.buffer.numel() for slot in self._slots)

    def take(self, block: int) -> Lease:
        """Return a lease on the block's weights, ready to compute with, and start the copies of the next blocks."""
        with self.copy_engine.fetching():
            return self._taken(block)

    def _taken(self, block: int) -> Lease:
        self.order.note(block)
        self._last = block
        coming = self.order.after(block, self._count - 1)
        slot = self._holding(block)
        if slot is None:
            self.late += 1
            slot = self._fill(self._victim(block, keep=()), block)
        self._await(slot)
        slot.users += 1
        for ahead in coming:
            if self._holding(ahead) is None:
                self._fill(self._victim(block, keep=(block, *coming)), ahead)
        return Lease(block=block, slot=slot.number, generation=slot.generation, views=self._shown(slot))

    def prefetch(self) -> None:
        """Fill all slots with the blocks after the last one taken, where no pass needs the present ones: the next pass
        begins with a layer in every slot. Does nothing before the order is known."""
        if self._last is None or any(slot.users for slot in self._slots):
            return
        coming = self.order.after(self._last, len(self._slots))
        for block in coming:
            if self._holding(block) is None:
                self._fill(self._victim(self._last, keep=coming), block)

    def give_back(self, lease: Lease) -> None:
        """End a lease once its computing is queued; the slot may be filled after that computing. Raises RingBroken if
        the slot was filled meanwhile."""
        slot = self._slots[lease.slot]
        self.check(lease)
        slot.users -= 1
        slot.freed = self.copy_engine.mark()

    def check(self, lease: Lease) -> None:
        """Raise RingBroken unless the slot still holds the leased block and generation."""
        slot = self._slots[lease.slot]
        if (slot.owner, slot.generation) != (lease.block, lease.generation) or slot.users < 1:
            raise RingBroken(
                f"Slot {slot.number} was taken for block {lease.block} in generation {lease.generation} and holds "
                f"block {slot.owner} in generation {slot.generation}, used by {slot.users}."
            )

    def _await(self, slot: Slot) -> None:
        """Wait for the slot's bytes. If the copy failed, clear the slot's owner, so that the block is fetched again."""
        try:
            self.copy_engine.wait(slot.arrival)
        except DjinnError:
            slot.owner = None
            raise

    def _holding(self, block: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.owner == block), None)

    def _may_fill(self, slot: Slot) -> bool:
        return slot.users == 0

    def _victim(self, now: int, keep: Sequence[int]) -> Slot:
        """Return a slot without users whose block is not in `keep`: an empty one, else that of the block needed last.
        Raises RingBroken if there is none."""
        free = [slot for slot in self._slots if self._may_fill(slot) and slot.owner not in keep]
        if not free:
            raise RingBroken("All slots of the ring are in use: two layers are computed at once.")
        return max(free, key=lambda slot: self._urgency(slot, now))

    def _urgency(self, slot: Slot, now: int) -> int:
        return len(self.runs) if slot.owner is None else self.order.ahead(slot.owner, now)

    def _fill(self, slot: Slot, block: int) -> Slot:
        slot.owner = block
        slot.generation += 1
        self.filled += 1
        slot.arrival = self.copy_engine.submit(self.runs[block].transfers(slot.buffer), slot.freed, block)
        return slot

    def _shown(self, slot: Slot) -> tuple[Tensor, ...]:
        assert slot.owner is not None
        key = (slot.number, slot.owner)
        if key not in self._views:
            self._views[key] = self.runs[slot.owner].layout.views(slot.buffer)
        return self._views[key]

    def slots(self) -> Iterator[tuple[int | None, int, int]]:
        """Iterate over owner, generation and users of each slot, for display."""
        return ((slot.owner, slot.generation, slot.users) for slot in self._slots)
