"""The ring of layers that stream, in a model and on streams."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from djinn_jupyter.engine.memory.weights.copy_engine import StreamCopyEngine, ThreadCopyEngine
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, weights_of
from djinn_jupyter.engine.memory.weights.streamed import BlockOrder, Lease, Ring, RingBroken
from djinn_jupyter.errors import StorageFailed
from tests.engine.memory.kv.small import CPU
from tests.engine.memory.weights.streaming import SlowCopyEngine
from tests.streams import CUDA, Gpu, instead_of_cuda


def runs(count: int) -> list[HostRun]:
    """Blocks of two weights, every entry of block n being n + 1."""
    blocks = []
    for number in range(count):
        block = nn.Linear(3 + number % 2, 5).requires_grad_(False)
        for parameter in block.parameters():
            parameter.fill_(number + 1)
        blocks.append(HostRun.as_loaded(weights_of(block)))
    return blocks


def shows(lease: Lease) -> bool:
    return all(bool((view == lease.block + 1).all()) for view in lease.views)


def one_pass(ring: Ring, blocks: range) -> None:
    for block in blocks:
        lease = ring.take(block)
        assert shows(lease)
        ring.give_back(lease)


class RingMachine(RuleBasedStateMachine):
    """One lease at a time, as a pass has; stops, jumps, sleeps; copies arrive when they like."""

    @initialize(blocks=st.integers(3, 6), slots=st.integers(2, 3))
    def begin(self, blocks: int, slots: int) -> None:
        self.copy_engine = SlowCopyEngine()
        self.blocks, self.lease, self.filled = blocks, None, 0
        self.ring = Ring(runs(blocks), min(slots, blocks - 1), CPU, self.copy_engine)
        self.generations = [0] * self.ring._count
        one_pass(self.ring, range(blocks))

    lease: Lease | None

    @precondition(lambda self: self.lease is None)
    @rule(block=st.integers(0, 5))
    def take(self, block: int) -> None:
        self.lease = self.ring.take(block % self.blocks)
        assert self.lease.block == block % self.blocks
        assert shows(self.lease)

    @precondition(lambda self: self.lease is not None)
    @rule()
    def give_back(self) -> None:
        assert self.lease is not None
        assert shows(self.lease), "nothing came into the slot while it was in use"
        self.ring.give_back(self.lease)
        self.lease = None

    @precondition(lambda self: self.lease is not None)
    @rule()
    def go_on(self) -> None:
        """Compute the next layer, which is there or on its way already."""
        now, late = self.lease.block, self.ring.late
        self.give_back()
        self.take((now + 1) % self.blocks)
        assert self.ring.late == late

    @rule()
    def some_arrive(self) -> None:
        if self.copy_engine.waiting:
            self.copy_engine.wait(self.copy_engine.waiting[0])

    @precondition(lambda self: self.lease is None)
    @rule()
    def sleep(self) -> None:
        self.ring.close()
        assert self.ring.slot_bytes == 0
        assert not self.copy_engine.waiting
        self.ring.open()
        self.generations = [0] * self.ring._count

    @precondition(lambda self: self.lease is not None)
    @rule()
    def no_sleep_meanwhile(self) -> None:
        with pytest.raises(RingBroken):
            self.ring.close()

    @invariant()
    def a_block_is_in_one_slot(self) -> None:
        if not hasattr(self, "ring"):
            return
        slots = list(self.ring.slots())
        owners = [owner for owner, _, _ in slots if owner is not None]
        assert len(owners) == len(set(owners)), "a block is in one slot at most"
        assert sum(users for _, _, users in slots) == (self.lease is not None)
        assert all(now >= before for (_, now, _), before in zip(slots, self.generations, strict=True))
        self.generations = [generation for _, generation, _ in slots]


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRing = RingMachine.TestCase


def test_a_lease_from_an_earlier_filling_is_found_out() -> None:
    ring = Ring(runs(5), 2, CPU, ThreadCopyEngine())
    old = ring.take(0)
    ring.give_back(old)
    for block in (1, 2, 3):
        ring.give_back(ring.take(block))
    with pytest.raises(RingBroken, match="generation"):
        ring.check(old)
    again = ring.take(0)
    assert again.generation != old.generation or again.slot != old.slot


def test_a_slot_in_use_is_never_filled() -> None:
    """With as many layers in use as there are slots, the next one is refused; no weights in use are touched."""
    ring = Ring(runs(5), 2, CPU, SlowCopyEngine())
    first, second = ring.take(0), ring.take(1)
    with pytest.raises(RingBroken, match="two layers are computed at once"):
        ring.take(2)
    assert shows(first)
    assert shows(second)
    ring.give_back(first)
    third = ring.take(2)
    assert third.slot == first.slot
    assert shows(second)
    assert shows(third)


def test_a_block_whose_bytes_could_not_be_had_is_fetched_again() -> None:
    class Failing(SlowCopyEngine):
        broken = True

        def wait(self, arrival: object) -> None:
            if self.broken:
                self.broken = False
                raise StorageFailed("the disk is away")
            super().wait(arrival)

    ring = Ring(runs(5), 2, CPU, Failing())
    with pytest.raises(StorageFailed):
        ring.take(0)
    lease = ring.take(0)
    assert shows(lease)
    assert ring.filled == 2


def test_the_next_copy_waits_until_the_slot_was_computed_with() -> None:
    """Marks are handed on: a filling begins after the mark of the last use of that very slot."""

    class Marks(SlowCopyEngine):
        def __init__(self) -> None:
            super().__init__()
            self.made, self.after = 0, []

        def mark(self) -> int:
            self.made += 1
            return self.made

        def submit(self, transfers: object, after: object, block: int | None = None) -> object:
            self.after.append(after)
            return super().submit(transfers, after, block)

    copy_engine = Marks()
    ring = Ring(runs(4), 2, CPU, copy_engine)
    one_pass(ring, range(4))  # marks: 1 at the opening, 2..5 the four uses; ahead of them only when the last was met
    assert copy_engine.after == [1, 1, 2, 4, 3], "block 3 after the use of block 2, block 0 after that of block 1"
    lease = ring.take(0)
    assert copy_engine.after[5:] == [5], "block 1 after the use of block 3"
    ring.give_back(lease)


def test_the_order_is_that_of_execution() -> None:
    order = BlockOrder(4)
    for block in (2, 0, 0):
        order.note(block)
    assert (order.learned, order.after(2, 1)) == (None, [])
    for block in (2, 0, 3, 1):  # the first pass was left after two layers, the second is whole
        order.note(block)
    assert order.learned == (2, 0, 3, 1)
    order.note(1), order.note(0)
    assert order.learned == (2, 0, 3, 1)
    assert order.after(3, 3) == [1, 2, 0]


def test_bytes_that_cannot_be_had_fail_the_pass_that_needs_them() -> None:
    copy_engine = ThreadCopyEngine()
    source, target = torch.zeros(4, dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)
    with pytest.raises(StorageFailed, match="could not be copied"):
        copy_engine.wait(copy_engine.submit([(source, target)], copy_engine.mark()))
    copy_engine.wait(copy_engine.submit([(source, target[:4])], copy_engine.mark()))
    assert copy_engine.statistics().nbytes == 4


BLOCKS = 4


def passes(seed: int, blocks: list[int], patch: pytest.MonkeyPatch) -> list[bool]:
    """Compute with these blocks on the GPU, one after the other; for each, whether its bytes were in the slot, at the
    beginning of the computing and at its end."""
    gpu = Gpu(random.Random(seed))
    instead_of_cuda(patch, gpu)
    right: list[bool] = []

    def compute(lease: Lease) -> None:
        for _ in range(2):
            gpu.ask(lambda: right.append(shows(lease)))

    ring = Ring(runs(BLOCKS), 2, CPU, StreamCopyEngine(CUDA))
    for block in (*range(BLOCKS), *blocks):
        lease = ring.take(block)
        compute(lease)
        ring.give_back(lease)
    gpu.synchronize()
    assert ring.copy_engine.statistics().nbytes == sum(
        ring.runs[copy.block].moved for copy in ring.copy_engine.copies(0)
    )
    return right


def test_a_pass_within_a_pass_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition reads a lens in the midst of a pass, which goes on computing behind it."""
    gpu = Gpu(random.Random(0))
    instead_of_cuda(monkeypatch, gpu)
    copy_engine = StreamCopyEngine(CUDA)
    ring = Ring(runs(BLOCKS), 2, CPU, copy_engine)
    with copy_engine.passing():
        for block in range(BLOCKS):
            ring.give_back(ring.take(block))
            with copy_engine.passing():
                pass
    gpu.synchronize()
    assert copy_engine.statistics().pass_seconds == 1e-3  # the double's time between any two events
    copies = copy_engine.copies(0)
    assert len(copy_engine.computed_during(copies)) == len(copies) > 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), blocks=st.lists(st.integers(0, BLOCKS - 1), max_size=12))
def test_computing_has_the_blocks_own_bytes(seed: int, blocks: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        right = passes(seed, blocks, patch)
    assert len(right) == 2 * (BLOCKS + len(blocks))
    assert all(right)


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("wait", lambda self, arrival: None),
        ("mark", lambda self: torch.cuda.Event()),
    ],
    ids=["computing does not wait for the copy", "the copy does not wait for the computing"],
)
def test_without_either_rule_it_has_not(monkeypatch: pytest.MonkeyPatch, rule: str, broken: object) -> None:
    monkeypatch.setattr(StreamCopyEngine, rule, broken)
    found = []
    for seed in range(20):
        with pytest.MonkeyPatch.context() as patch:
            found += passes(seed, list(range(BLOCKS)) * 2, patch)
    assert not all(found)
