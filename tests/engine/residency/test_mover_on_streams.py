"""Pages leave and come back on a side stream while the GPU is behind: a pass that uses a page has its bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import BLOCK, GROWTH_BYTES, DiskTier
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import Copy, MoverBatch, Read, perform
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from tests.engine.memory.kv.small import CPU, GEOMETRY
from tests.engine.residency.doubles import FileInMemory
from tests.streams import CUDA, Event, Gpu, Stream, instead_of_cuda

PAGES, SLOTS = 5, 3
Deeds = list[tuple[str, int]]


class Later:
    """Takes batches, and does one when it is told to."""

    def __init__(self) -> None:
        self.batches: list[MoverBatch] = []

    def submit(self, batch: MoverBatch) -> None:
        self.batches.append(batch)

    def stop(self) -> None: ...


class World:
    """More pages than slots. `right` says of each reading whether the page held its last write."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.side, self.mover = gpu, gpu.new_stream(), Later()
        self.slab = Slab(GEOMETRY, CPU, SLOTS * GEOMETRY.page_bytes, segment_pages=1)
        self.tiers = Tiers(HostTier(1 << 26), None, self.mover, CUDA)
        self.numbers: list[int] = []
        self.values: list[int] = []
        self.right: list[bool] = []
        for _ in range(PAGES):
            self._one_more()

    def _one_more(self) -> None:
        if len(self.numbers) >= SLOTS:
            self.store(len(self.numbers) - SLOTS)
            self.move()
            self.leave(len(self.numbers) - SLOTS)
        self.numbers += self.slab.allocate(1)
        self.values.append(0)
        self.write(len(self.numbers) - 1)

    def do(self, deed: str, which: int) -> None:
        verb: Callable[[int], None] = getattr(self, deed)
        verb(which % PAGES)

    def write(self, which: int) -> None:
        page = self.slab.page(self.numbers[which])
        if page.resident:
            self.values[which] = value = (self.values[which] + 7 * which + 1) % 251
            place = page.span().view()
            self.gpu.ask(lambda: place.fill_(value))
            page.wrote()

    def read(self, which: int) -> None:
        page = self.slab.page(self.numbers[which])
        if page.resident:
            place, value = page.span().view(), self.values[which]
            self.gpu.ask(lambda: self.right.append(bool((place == value).all())))

    def store(self, which: int) -> None:
        page = self.slab.page(self.numbers[which])
        if page.resident:
            self.tiers.store([page], "host")

    def leave(self, which: int) -> None:
        page = self.slab.page(self.numbers[which])
        if page.resident and page.copies and not page.moving:
            page.leave()

    def load(self, which: int) -> None:
        if self.slab.segments.free:
            self.tiers.load([self.slab.page(self.numbers[which])])

    def move(self, which: int = 0) -> None:
        if self.mover.batches:
            self.tiers.settle(perform(self.mover.batches.pop(which % len(self.mover.batches)), self.side))


def readings(seed: int, deeds: Deeds, patch: pytest.MonkeyPatch) -> list[bool]:
    gpu = Gpu(random.Random(seed))
    instead_of_cuda(patch, gpu)
    world = World(gpu)
    for deed, which in deeds:
        world.do(deed, which)
    gpu.synchronize()
    assert all(perform(batch, world.side).error is None for batch in world.mover.batches)
    return world.right


DEEDS = st.sampled_from(["write", "read", "store", "leave", "load", "move"])


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30), deeds=st.lists(st.tuples(DEEDS, st.integers(0, PAGES - 1)), max_size=60))
def test_computing_has_the_pages_own_bytes(seed: int, deeds: Deeds) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert all(readings(seed, deeds, patch))


TURN: Deeds = [
    ("write", 4),
    ("store", 4),
    ("move", 0),
    ("read", 4),
    ("leave", 4),
    ("load", 0),
    ("move", 0),
    ("read", 0),
]
TURNS: Deeds = [(deed, which + ahead) for which in range(3 * PAGES) for deed, ahead in TURN]


def test_turns_are_taken() -> None:
    """The deeds of the next test really read pages that have left and come back."""
    with pytest.MonkeyPatch.context() as patch:
        right = readings(0, TURNS, patch)
    assert len(right) > PAGES
    assert all(right)


@pytest.mark.parametrize("rule", ["wait_event", "synchronize"], ids=["copies wait for nothing", "done is said early"])
def test_without_either_rule_it_has_not(rule: str) -> None:
    found: list[bool] = []
    for seed in range(20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, rule, lambda *_: None)
            patch.setattr(Event, "elapsed_time", lambda *_: 0.0)  # CUDA refuses it before the events have passed
            found += readings(seed, TURNS, patch)
    assert not all(found)


def test_a_batch_that_fails_has_made_its_other_copies_when_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine frees the places of a failed batch: no copy may still be going to one."""
    gpu = Gpu(random.Random(0))
    instead_of_cuda(monkeypatch, gpu)
    file = FileInMemory()
    side, tier = gpu.new_stream(), DiskTier(file, GROWTH_BYTES)
    (place,) = tier.allocate([BLOCK])
    monkeypatch.setattr(file, "read", lambda buffer, offset: 0)  # nothing of it waits for the device
    sides = [Span(memory=torch.full((BLOCK,), value, dtype=torch.uint8), start=0, nbytes=BLOCK) for value in (1, 0, 0)]
    source, target, other = sides
    moves = (Copy(source=source, target=target), Read(disk=tier, place=place, checksum=1, target=other))
    ready = torch.cuda.Event()
    ready.record(gpu.current)
    moved = perform(MoverBatch(moves=moves, urgent=True, ready=(ready,)), side)
    assert moved.error is not None
    assert not side.steps
    assert torch.equal(target.memory, source.memory)
