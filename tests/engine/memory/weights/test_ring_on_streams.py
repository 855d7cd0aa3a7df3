"""The ring on CUDA's side stream: a pass that computes with a slot has its block's bytes, in any allowed order."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.memory.weights.copy_engine import StreamCopyEngine
from djinn_jupyter.engine.memory.weights.streamed import Lease, Ring
from tests.engine.memory.kv.small import CPU
from tests.engine.memory.weights.test_ring import runs, shows
from tests.streams import CUDA, Gpu, instead_of_cuda

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
