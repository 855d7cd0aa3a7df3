"""Memory that other programs need: unused memory goes first, then sessions; and the system really gets it back."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
import torch

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.memory.kv.pages import PageTable
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import DirectFile, DiskTier
from djinn_jupyter.engine.memory.offload.mover import perform
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.room import ExternalPressure
from djinn_jupyter.engine.system.device import Usage
from tests.engine.desk import Desk, tokens
from tests.engine.residency.doubles import HeldMover
from tests.engine.residency.test_pressure import PAGE, small

TOTAL = 2000 * PAGE  # so that the headroom is a hundred pages


def reading(*, free: int, others: int) -> Usage:
    return Usage(process_bytes=0, device_in_use=TOTAL - free, device_total=TOTAL, other_bytes=others)


@pytest.fixture(scope="module")
def sixty() -> Desk:
    return small(60)


@pytest.fixture
def desk(sixty: Desk) -> Iterator[Desk]:
    for name in "abc":
        sixty.open(name)
        sixty.run(tokens(60), 1, name)
    yield sixty
    sixty.close_all()


def away(desk: Desk) -> list[str]:
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)
    return [session.name for session in desk.engine.sessions.values() if session.residence.state == "host"]


def test_others_that_grow_get_what_nobody_uses_and_then_what_the_longest_unused_have(desk: Desk) -> None:
    ours = ExternalPressure(
        desk.engine.sessions,
        desk.engine.residency.eviction,
        desk.engine.residency.swapping,
        reading(free=500 * PAGE, others=PAGE),
    )
    budget = desk.engine.slabs[0].budget
    assert budget.lent > 0
    ours.apply(reading(free=98 * PAGE, others=400 * PAGE))
    assert (budget.lent, away(desk)) == (0, [])
    ours.apply(reading(free=98 * PAGE, others=400 * PAGE))
    assert away(desk) == ["a"]
    taken = budget.taken
    ours.apply(reading(free=98 * PAGE, others=400 * PAGE))
    assert budget.taken < taken, "what it left is given back before anybody else leaves"
    ours.apply(reading(free=110 * PAGE, others=400 * PAGE))
    ours.apply(reading(free=98 * PAGE, others=400 * PAGE))
    assert away(desk) == ["a"]


def test_little_memory_that_others_did_not_take_is_no_reason_to_leave(desk: Desk) -> None:
    ours = ExternalPressure(
        desk.engine.sessions,
        desk.engine.residency.eviction,
        desk.engine.residency.swapping,
        reading(free=PAGE, others=50 * PAGE),
    )
    for _ in range(4):
        ours.apply(reading(free=PAGE, others=50 * PAGE))
    assert away(desk) == []


def test_on_the_cpu_nothing_is_done() -> None:
    assert Usage.read(torch.device("cpu")).other_bytes is None


def test_the_process_gets_smaller_when_pages_leave_for_the_disk(tmp_path) -> None:
    """The pages come back with the bytes that left."""
    layer = LayerGeometry(cache_layer=0, kind="full", kv_heads=8, key_dim=128, value_dim=128, dtype=torch.float32)
    geometry = GroupGeometry.lay_out([layer], page_positions=256)
    slab = Slab(geometry, torch.device("cpu"), 256 << 20)
    table = PageTable(slab)
    table.allocate(96 * 256)
    for page in table.pages:
        slab.bytes_of(page).copy_(torch.full((geometry.page_bytes,), page % 251, dtype=torch.uint8))
    moved: list = []
    mover = HeldMover(moved.append)
    tiers = Tiers(None, DiskTier(DirectFile(tmp_path / "pages"), 1 << 30), mover, torch.device("cpu"))
    items = [slab.page(page) for page in table.pages]
    before = psutil.Process().memory_info().rss
    tiers.store(items, "disk")
    while mover.batches:
        tiers.settle(perform(mover.batches.pop()))
    for item in items:
        item.leave()
    slab.shrink()
    gone = before - psutil.Process().memory_info().rss
    assert gone > 0.9 * sum(item.nbytes for item in items), f"{gone >> 20} MiB"
    tiers.load(items)
    while mover.batches:
        tiers.settle(perform(mover.batches.pop()))
    assert all(bool(slab.bytes_of(page).eq(page % 251).all()) for page in table.pages)
    tiers.stop()
