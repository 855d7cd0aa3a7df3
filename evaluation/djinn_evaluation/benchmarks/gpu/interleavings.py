"""Random interleavings of computing and copying on the device of the run: pages that leave and return, and the ring.

Freed pages are poisoned, and every reading of a page or a slot is compared on the device, when its turn comes: work is
queued as the engine queues it, and only the end waits. `python -m djinn_evaluation.benchmarks.gpu.interleavings COUNT`
is what the compute-sanitizer looks at.
"""

from __future__ import annotations

import json
import queue
import random
import sys
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.memory.kv.slab import Page, Slab
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import Moved, ThreadMover
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.copy_engine import CopyEngine, copy_engine_for
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, weights_of
from djinn_jupyter.engine.memory.weights.streamed import Ring
from djinn_jupyter.engine.residency.residency import memory_of
from tests.device import DEVICE

PAGES, SLOTS, DEEDS = 7, 4, 40
GEOMETRY: Final = GroupGeometry.lay_out(
    [LayerGeometry(cache_layer=0, kind="full", kv_heads=8, key_dim=64, value_dim=64, dtype=torch.float16)],
    page_positions=32,
)
BLOCKS, RING_SLOTS, PASSES = 5, 2, 4
VERBS: Final = ("write", "read", "store", "leave", "load", "settle", "compute")
MOST_CYCLES = 200_000  # a tenth of a millisecond of a GPU's


def computed() -> None:
    """Keep the device busy for a random time, so that the host and the copies run ahead of it."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(random.randrange(MOST_CYCLES))


class Pages:
    """More pages than slots. `right` says of each reading, on the device, whether the page held its last write."""

    def __init__(self, by_chance: random.Random) -> None:
        self._by_chance, self._ended = by_chance, queue.SimpleQueue[Moved]()
        self._slab = Slab(GEOMETRY, DEVICE, SLOTS * GEOMETRY.page_bytes, segment_pages=1, poison=True)
        host = HostTier(2 * PAGES * GEOMETRY.page_bytes, memory=memory_of(DEVICE))
        self.tiers = Tiers(host, None, ThreadMover(self._ended.put, DEVICE), DEVICE)
        self._pages: list[Page] = []
        self._values: list[int] = []
        self.right: list[Tensor] = []
        while len(self._pages) < PAGES:
            self._one_more()

    def _one_more(self) -> None:
        if len(self._pages) >= SLOTS:
            self._away(self._pages[len(self._pages) - SLOTS])
        self._pages.append(self._slab.page(*self._slab.allocate(1)))
        self._values.append(0)
        self.write(len(self._pages) - 1)

    def _away(self, page: Page) -> None:
        self.tiers.store([page], "host")
        while self.tiers.moving:
            self.settle()
        page.leave()

    def act(self) -> None:
        verb: Callable[[int], None] = getattr(self, self._by_chance.choice(VERBS))
        verb(self._by_chance.randrange(PAGES))

    def write(self, which: int) -> None:
        page = self._pages[which]
        if page.resident:
            self._values[which] = self._by_chance.randrange(251)
            page.span().view().fill_(self._values[which])
            page.wrote()

    def read(self, which: int) -> None:
        if self._pages[which].resident:
            self.right.append((self._pages[which].span().view() == self._values[which]).all())

    def store(self, which: int) -> None:
        if self._pages[which].resident:
            self.tiers.store([self._pages[which]], "host")

    def leave(self, which: int) -> None:
        page = self._pages[which]
        if page.resident and page.copies and not page.moving:
            page.leave()

    def load(self, which: int) -> None:
        if self._slab.segments.free:
            self.tiers.load([self._pages[which]])

    def settle(self, which: int = 0) -> None:
        """Account for a batch that has ended; wait for one where one is under way."""
        if self.tiers.moving:
            moved = self._ended.get()
            if moved.error is not None:
                raise moved.error
            self.tiers.settle(moved)

    def compute(self, which: int) -> None:
        computed()

    def end(self) -> None:
        """Bring each page back in turn, and read it."""
        for number, page in enumerate(self._pages):
            while self.tiers.moving:
                self.settle()
            if not page.resident and not self._slab.segments.free:
                self._away(next(other for other in self._pages if other.resident))
            self.load(number)
            while self.tiers.moving:
                self.settle()
            self.read(number)
        self.tiers.stop()


def of_pages(seed: int) -> list[Tensor]:
    """Do random deeds; return the readings."""
    world = Pages(random.Random(seed))
    for _ in range(DEEDS):
        world.act()
    world.end()
    return world.right


def blocks() -> list[HostRun]:
    """Return blocks of weights as the ring has them, every number of block n being n + 1."""
    made = []
    for number in range(BLOCKS):
        block = nn.Linear(64 + number, 256, dtype=torch.float16).requires_grad_(False)
        for parameter in block.parameters():
            parameter.fill_(number + 1)
        weights = weights_of(block)
        made.append(HostRun.pinned(weights, DEVICE) if DEVICE.type == "cuda" else HostRun.as_loaded(weights))
    return made


def of_ring(seed: int, runs: list[HostRun], copy_engine: CopyEngine) -> list[Tensor]:
    """Compute passes that are left, go back and begin anew, with sleep between them; return the readings."""
    by_chance, right = random.Random(seed), list[Tensor]()
    ring, block = Ring(runs, RING_SLOTS, DEVICE, copy_engine), 0
    for _ in range(PASSES * BLOCKS):
        lease = ring.take(block)
        for _ in range(2):
            right += [(view == block + 1).all() for view in lease.views]
            computed()
        ring.give_back(lease)
        block = by_chance.randrange(BLOCKS) if by_chance.random() < 0.1 else (block + 1) % BLOCKS
        if by_chance.random() < 0.02:
            ring.close()
            ring.open()
    ring.close()
    return right


def wrong(seeds: range) -> list[int]:
    """Return the seeds in which a reading was wrong."""
    runs, copy_engine, found = blocks(), copy_engine_for(DEVICE), []
    for seed in seeds:
        random.seed(seed)
        right = of_pages(seed) + of_ring(seed, runs, copy_engine)
        if not bool(torch.stack(right).all()):
            found.append(seed)
    return found


if __name__ == "__main__":
    count = int(sys.argv[1])
    bad = wrong(range(count))
    print(json.dumps({"interleavings": count, "wrong": bad}))
    sys.exit(bool(bad))
