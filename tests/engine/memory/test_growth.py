"""A limit is a bound: however large it is, no more main memory is mapped than there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from djinn_jupyter import machine
from djinn_jupyter.engine.memory.budget import STALE_SECONDS, Budget, Growth
from djinn_jupyter.engine.memory.kv.geometry import probe_geometry
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.errors import SlabFull, TierFull
from djinn_jupyter.machine import MainMemory
from tests.engine.desk import build_desk, tokens
from tests.engine.memory.kv.runs import CPU, PAGE
from tests.families import build

MIB = 1 << 20


@dataclass
class Machine:
    """A machine of 100 MiB, of which other programs take some; its clock stands still until it is moved."""

    others: int = 0
    filled: int = 0
    now: float = 0.0
    files_left: bool = True
    mapped: list[int] = field(default_factory=list)

    def read(self) -> MainMemory:
        if not self.files_left:
            raise OSError("Too many open files")
        available = 100 * MIB - self.others - self.filled
        return MainMemory(total=100 * MIB, available=available, machine_total=100 * MIB)

    def growth(self) -> Growth:
        return Growth(self.read, lambda: self.now)

    def map(self, nbytes: int) -> Tensor:
        self.mapped.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)


def test_where_no_file_can_be_opened_the_last_reading_holds() -> None:
    there = Machine(others=10 * MIB)
    growth, taken = there.growth(), [0]
    growth.add(lambda: taken[0])
    left = growth.left()
    there.files_left = False
    there.now += STALE_SECONDS
    taken[0] = 30 * MIB
    assert growth.left() == left - 30 * MIB
    there.files_left, there.others = True, 50 * MIB
    there.now += STALE_SECONDS
    assert growth.left() < left - 30 * MIB


def test_what_is_mapped_counts_before_it_is_filled_and_once_afterwards() -> None:
    there = Machine()
    growth, taken = there.growth(), [0, 0]
    growth.add(lambda: taken[0])
    growth.add(lambda: taken[1])
    assert growth.left() == 95 * MIB
    taken[:] = 30 * MIB, 10 * MIB
    assert growth.left() == 55 * MIB
    there.now += STALE_SECONDS  # another reading, in which nothing has been filled
    assert growth.left() == 55 * MIB
    there.filled = 40 * MIB
    there.now += STALE_SECONDS
    assert growth.left() == 55 * MIB


def test_what_other_programs_take_is_not_left_and_comes_back_with_them() -> None:
    there = Machine()
    growth = there.growth()
    there.others = 50 * MIB
    assert growth.left() == 95 * MIB, "by the last reading"
    there.now += STALE_SECONDS
    assert growth.left() == 45 * MIB
    there.others = 99 * MIB
    there.now += STALE_SECONDS
    assert growth.left() == 0
    there.others = 0
    there.now += STALE_SECONDS
    assert growth.left() == 95 * MIB


def test_a_machine_with_little_left_keeps_a_quarter_of_that_free() -> None:
    assert Machine(others=92 * MIB).growth().left() == 6 * MIB


def test_the_host_tier_takes_what_there_is_and_then_says_so() -> None:
    there = Machine()
    tier = HostTier(9000 << 40, memory=there.map, growth=there.growth())
    tier.allocate([20 * MIB])
    there.now += STALE_SECONDS
    there.others = 20 * MIB
    tier.allocate([40 * MIB])
    with pytest.raises(TierFull, match=r"are used of a limit of .* Of main memory .* are left to it: close a session"):
        tier.allocate([40 * MIB])
    assert sum(there.mapped) == tier.allocated <= 75 * MIB


def test_pages_and_working_copies_take_what_there_is_and_then_say_so() -> None:
    there = Machine()
    geometry = probe_geometry(build("llama"), CPU, PAGE)
    page = geometry.groups[0].page_bytes
    there.others = 100 * MIB - 24 * page  # a quarter of which stays free
    slab = Slab(geometry.groups[0], CPU, Budget(9000 << 40, there.growth()))
    pages = slab.allocate(5)
    assert slab.segment_bytes == 5 * page, "what is asked for, where that is more than a sixteenth of what there is"
    slab.allocate(13)
    with pytest.raises(SlabFull, match=r"0 are free and 18 in use, and main memory has 0 B left .* another program"):
        slab.allocate(1)
    slab.free(pages)
    slab.allocate(5)


def test_sessions_beyond_what_there_is_go_to_the_disk_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An engine that was allowed far more than the 2 MiB that its container has left."""
    names, twin = [f"s{number}" for number in range(12)], build_desk(build("llama"), data_folder=tmp_path / "twin")
    expected = []
    for number, name in enumerate(names):
        twin.open(name)
        twin.run(tokens(400, seed=number), new=2, name=name)
        expected.append((twin.run((), new=3, name=name, extend=True).tokens, twin.logits(name)))
    twin.close_all()
    twin.engine.close()
    monkeypatch.setattr(machine, "_limits", lambda root, machine: iter([(64 * MIB, 2 * MIB)]))
    desk = build_desk(build("llama"), device_memory=1 << 50, host_memory=1 << 50, data_folder=tmp_path)
    tier = desk.engine.tiers.host
    assert tier is not None
    for number, name in enumerate(names):
        desk.open(name)
        desk.run(tokens(400, seed=number), new=2, name=name)
        assert (
            sum(slab.segment_bytes + slab.working_bytes for slab in desk.engine.slabs) + tier.allocated
            <= 2 * MIB * 3 // 4
        )
    assert {session.residence.state for session in desk.engine.sessions.values()} >= {"resident", "disk"}
    for name, (ids, logits) in zip(names, expected, strict=True):
        assert desk.run((), new=3, name=name, extend=True).tokens == ids
        assert desk.logits(name).equal(logits)
    desk.engine.check_invariants()
    desk.close_all()
    desk.engine.close()
