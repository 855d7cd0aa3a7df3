"""The accounting of host and disk: a place is taken once, refusals change nothing, bytes come back as they were."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.memory.offload.disk import BLOCK, GROWTH_BYTES, DirectFile, DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.extents import Extents, Span, coalesced
from djinn_jupyter.engine.memory.offload.host import SEGMENT_BYTES, HostTier
from djinn_jupyter.engine.memory.offload.mover import Copy, Moved, MoverBatch, Write, perform
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.engine.system.host_memory import HUGE_BYTES, pageable
from djinn_jupyter.errors import StorageFailed, TierFull
from tests.engine.residency.doubles import FileInMemory


def span(nbytes: int, seed: int = 0) -> Span:
    memory = torch.randint(256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Span(memory=memory, start=0, nbytes=nbytes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 30)), max_size=60))
def test_extents_give_every_byte_once(steps):
    extents, taken = Extents(40), []
    for allocate, size, which in steps:
        if allocate:
            start = extents.allocate(size)
            assert start is not None or all(end - begin < size for begin, end in extents._free)
            taken += [] if start is None else [(start, size)]
        elif taken:
            extents.free(*taken.pop(which % len(taken)))
        extents.check(taken)
        assert extents.free_bytes == 40 - sum(size for _, size in taken)
        assert extents.used_end == max((start + size for start, size in taken), default=0)


def test_what_is_free_cannot_be_freed_and_what_is_taken_not_taken():
    extents = Extents(10)
    extents.take_at(2, 4)
    for wrong in (lambda: extents.free(0, 1), lambda: extents.free(5, 2), lambda: extents.take_at(5, 1)):
        with pytest.raises(InvariantError):
            wrong()
    with pytest.raises(InvariantError, match="too short"):
        extents.resize(5)
    extents.resize(6)
    extents.check([(2, 4)])
    extents.resize(20)
    assert extents.allocate(14) == 6


def test_the_host_tier_refuses_with_numbers_and_changes_nothing():
    tier = HostTier(10 << 20)
    kept = tier.allocate([6 << 20])
    before = tier.statistics()
    with pytest.raises(
        TierFull, match=r"no room for 6.00 MiB: 6.00 MiB are used of a limit of 10.0 MiB.*--host-memory"
    ):
        tier.allocate([1 << 20, 5 << 20])
    assert tier.statistics() == before
    tier.check(kept)


def test_the_host_tier_gives_memory_back_to_the_system():
    tier = HostTier(10 * SEGMENT_BYTES)
    places = [tier.allocate([SEGMENT_BYTES])[0] for _ in range(6)]
    for place in places:
        tier.free(place)
    assert tier.allocated <= 2 * SEGMENT_BYTES
    assert tier.shrink() == 2 * SEGMENT_BYTES
    assert (tier.allocated, tier.used) == (0, 0)


def test_memory_that_the_system_refuses_is_a_full_tier():
    def refuse(nbytes):
        raise MemoryError("no memory left")

    tier = HostTier(1 << 30, memory=refuse)
    with pytest.raises(TierFull):
        tier.allocate([1 << 20])
    assert tier.allocated == tier.used == 0


@pytest.mark.parametrize("nbytes", [1 << 16, HUGE_BYTES, 3 * HUGE_BYTES + 4096])
def test_memory_of_the_host_begins_at_a_page(nbytes):
    memory = pageable(nbytes)
    assert memory.data_ptr() % (HUGE_BYTES if nbytes >= HUGE_BYTES else 4096) == 0
    assert memory.nbytes == nbytes
    memory.fill_(7)
    assert torch.equal(memory, torch.full((nbytes,), 7, dtype=torch.uint8))


def test_memory_of_the_host_goes_back_with_its_tensor():
    def resident() -> int:
        return psutil.Process().memory_info().rss

    memory = pageable(64 << 20)
    before = resident()
    memory.fill_(1)
    assert resident() - before > 60 << 20
    del memory
    assert resident() - before < 8 << 20


@pytest.mark.parametrize("start", [0, BLOCK, 512])
def test_bytes_are_written_from_where_they_are_or_by_way_of_the_staging(tmp_path, start):
    """A span on a block's address goes past the staging buffer, another through it; both find the same file."""
    tier = DiskTier(DirectFile(tmp_path / "pages"), 1 << 26)
    (place,) = tier.allocate([5 << 20])
    memory, back = pageable(8 << 20), pageable(8 << 20)
    memory.random_(256)
    source = Span(memory=memory, start=start, nbytes=5 << 20)
    checksum = tier.write(place, source)
    for at in (0, 512):
        target = Span(memory=back, start=at, nbytes=5 << 20)
        tier.read(place, checksum, target)
        assert torch.equal(target.view(), source.view())
        with pytest.raises(StorageFailed, match="checksum"):
            tier.read(place, checksum + 1, target)
    tier.close()


@pytest.mark.parametrize("nbytes", [1, BLOCK, 3 * BLOCK + 17, (9 << 20) + 512])
def test_bytes_come_back_from_a_real_file(tmp_path, nbytes):
    tier = DiskTier(DirectFile(tmp_path / "pages"), 1 << 30)
    assert not os.listdir(tmp_path), "the file has no name: it is gone with the process"
    (place,) = tier.allocate([nbytes])
    source, target = span(nbytes), span(nbytes, seed=1)
    checksum = tier.write(place, source)
    tier.sync()
    tier.read(place, checksum, target)
    assert torch.equal(source.memory, target.memory)
    with pytest.raises(StorageFailed, match="other bytes than were written"):
        tier.read(place, checksum ^ 1, target)
    tier.free(place)
    tier.check([])
    tier.close()


def test_a_file_that_is_kept_is_found_again(tmp_path: Path):
    first = DiskTier(DirectFile(tmp_path / "pages", keep=True), 1 << 30)
    places = first.allocate([5000, 70000, 512])
    sums = [first.write(place, span(place.nbytes, seed)) for seed, place in enumerate(places)]
    first.sync()
    first.close()
    second = DiskTier(DirectFile(tmp_path / "pages", keep=True), 1 << 30)
    for seed, place in enumerate(places[:2]):
        second.adopt(DiskPlace(start=place.start, nbytes=place.nbytes))
        target = span(place.nbytes, seed=9)
        second.read(place, sums[seed], target)
        assert torch.equal(target.memory, span(place.nbytes, seed).memory)
    with pytest.raises(InvariantError):
        second.adopt(places[0])
    second.check(places[:2])
    assert second.allocate([100])[0].start == places[2].start
    second.close()


def test_a_full_disk_is_met_before_anything_is_written():
    file = FileInMemory(room=GROWTH_BYTES)
    tier = DiskTier(file, 1 << 40)
    kept = tier.allocate([GROWTH_BYTES - BLOCK])
    with pytest.raises(TierFull, match="No space left on device"):
        tier.allocate([BLOCK, BLOCK])
    tier.check(kept)
    tier.free(kept[0])
    assert len(file.bytes) == 0


def test_neighbours_are_copied_at_once():
    one, other = span(100), span(100, seed=1)

    def part(whole, start, nbytes):
        return Span(memory=whole.memory, start=start, nbytes=nbytes)

    pieces = [(0, 50), (10, 60), (20, 75), (30, 85)]
    runs = list(coalesced((part(one, a, 10), part(other, b, 10)) for a, b in pieces))
    assert [(s.start, t.start, s.nbytes) for s, t in runs] == [(0, 50, 20), (20, 75, 20)]


@given(source=st.integers(0, 16), target=st.integers(0, 16), nbytes=st.integers(1, 64))
def test_bytes_are_copied_wherever_they_begin(source, target, nbytes):
    """Copies go by words where both sides are aligned, by bytes elsewhere, and not one byte beyond the end."""
    bytes_out, bytes_in = torch.arange(1, 97, dtype=torch.uint8), torch.zeros(96, dtype=torch.uint8)
    spans = [Span(memory=memory, start=at, nbytes=nbytes) for memory, at in ((bytes_out, source), (bytes_in, target))]
    perform(MoverBatch(moves=(Copy(source=spans[0], target=spans[1]),), urgent=False))
    expected = torch.zeros(96, dtype=torch.uint8)
    expected[target : target + nbytes] = bytes_out[source : source + nbytes]
    assert torch.equal(bytes_in, expected)


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_has_ended_holds_no_memory(fails: bool) -> None:
    """Neither does its error: the thread may still hold both when the engine frees the copied memory."""
    file = FileInMemory()
    tier = DiskTier(file, GROWTH_BYTES)
    (place,) = tier.allocate([BLOCK])
    source = span(BLOCK)
    storage = weakref.ref(source.memory)
    file.full = fails
    batch = MoverBatch(moves=(Write(source=source, disk=tier, place=place),), urgent=False)
    del source
    moved: Moved = perform(batch)
    assert (moved.error is not None) == fails
    assert storage() is None
