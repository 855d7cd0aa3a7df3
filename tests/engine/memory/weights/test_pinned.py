"""Pinned memory keeps CUDA's rules: told by a runtime that has the rules and no GPU."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.memory.offload.disk import DirectFile, DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, raw_bytes, weights_of
from djinn_jupyter.engine.residency.residency import open_disk, open_host
from djinn_jupyter.engine.system import host_memory as pinning
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.host_memory import pinned
from tests.families import build

CUDA = torch.device("cuda")
PAGE = mmap.PAGESIZE
ALREADY_REGISTERED, NO_MEMORY, NOT_REGISTERED = 712, 2, 713
Patch = pytest.MonkeyPatch


class Runtime:
    """`most` bytes may be registered; a refusal is `pending` until a kernel is started."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.most = 1 << 40
        self.pending: int = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if any(_pages(address, nbytes) & _pages(*known) for known in self.ranges.items()):
            self.pending = ALREADY_REGISTERED
        elif sum(self.ranges.values()) + nbytes > self.most:
            self.pending = NO_MEMORY
        else:
            self.ranges[address] = nbytes
        return self.pending

    def cudaHostUnregister(self, address: int) -> int:
        if self.ranges.pop(address, None) is None:
            self.pending = NOT_REGISTERED
        return self.pending

    def start_kernel(self, *_: Any, device: Any = None) -> Any:
        assert torch.device(device) == CUDA

        def add_(other: int) -> None:
            refused, self.pending = self.pending, 0
            if refused:
                raise RuntimeError(f"CUDA error {refused}")

        return SimpleNamespace(add_=add_)

    def may_be_copied(self, host: Tensor) -> bool:
        """True if the bytes lie within one registration, or outside of all."""
        begin, end = host.data_ptr(), host.data_ptr() + host.numel()
        met = [(a, n) for a, n in self.ranges.items() if a < end and begin < a + n]
        return not met or (len(met) == 1 and met[0][0] <= begin and end <= sum(met[0]))

    def is_pinned(self, host: Tensor) -> bool:
        return self.may_be_copied(host) and any(a <= host.data_ptr() < a + n for a, n in self.ranges.items())


def _pages(address: int, nbytes: int) -> set[int]:
    return set(range(address // PAGE, -(-(address + nbytes) // PAGE)))


@pytest.fixture
def runtime(monkeypatch: Patch) -> Iterator[Runtime]:
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    yield made
    gc.collect()
    assert (made.ranges, made.pending) == ({}, 0), "memory went that is registered still"


def test_small_weights_have_pages_of_their_own(runtime: Runtime) -> None:
    """Buffers of torch's own allocator lie side by side in one page, which is registered once."""
    weights = weights_of(build("llama"))
    runs = [HostRun.pinned([weight], CUDA) for weight in weights]
    assert all(runtime.is_pinned(piece) for run in runs for piece in run.pieces)


def test_what_goes_is_unregistered_before_it_goes(runtime: Runtime) -> None:
    memory = pinned(3 * PAGE + 5)
    (view, address) = memory[PAGE:], memory.data_ptr()
    del memory
    assert runtime.ranges == {address: 3 * PAGE + 5}, "a view is left"
    del view
    assert not runtime.ranges


def test_tiers_leave_nothing_registered(runtime: Runtime, tmp_path: Path) -> None:
    """An engine with a journal takes another disk tier in the place of its first one."""
    host, disk = HostTier(1 << 30, memory=pinned), DiskTier(DirectFile(tmp_path / "pages"), 1 << 30, memory=pinned)
    (place,) = host.allocate([100 << 20])
    assert len(runtime.ranges) == 2
    host.free(place)
    host.shrink()
    disk.close()
    del disk, place
    assert not runtime.ranges


def test_a_refusal_registers_nothing_and_is_heard_here(runtime: Runtime, monkeypatch: Patch) -> None:
    """An error left behind would fail the next kernel of any session."""
    monkeypatch.setattr(pinning, "PIECE_MOST", 4 * PAGE)
    monkeypatch.setattr(torch, "zeros", runtime.start_kernel)
    runtime.most = 9 * PAGE
    with pytest.raises(MemoryError, match=r"cudaHostRegister of 8\.00 KiB was refused with code 2"):
        pinned(10 * PAGE)
    assert (runtime.ranges, runtime.pending) == ({}, 0)


def test_weights_that_may_not_be_pinned_are_copied_all_the_same(
    runtime: Runtime, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """No copy is of memory that is pinned in part."""
    monkeypatch.setattr(pinning, "PIECE_MOST", 4 * PAGE)
    monkeypatch.setattr(torch, "zeros", runtime.start_kernel)
    runtime.most = 9 * PAGE
    weights = weights_of(build("llama"))
    run = HostRun.pinned(weights, CUDA)
    target = torch.empty(run.layout.nbytes, dtype=torch.uint8)
    fill(run, target, runtime)
    assert not runtime.ranges
    assert "not pinned" in caplog.text
    assert all(torch.equal(view, w.tensor) for view, w in zip(run.layout.views(target), weights, strict=True))


def test_tiers_that_may_not_be_pinned_are_there_all_the_same(
    runtime: Runtime, monkeypatch: Patch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a container locks no memory, an engine on a GPU starts, and its sessions leave the device."""
    monkeypatch.setattr(torch, "zeros", runtime.start_kernel)
    runtime.most = 0
    config = EngineConfig(model="tiny", data_folder=tmp_path, host_memory=1 << 20, disk_memory=1 << 30)
    host, disk = open_host(config, CUDA), open_disk(config, CUDA)
    assert disk is not None
    assert host.allocate([PAGE])
    assert "not pinned" in caplog.text
    disk.close()


def test_no_copy_goes_beyond_what_was_registered_at_once(runtime: Runtime, monkeypatch: Patch) -> None:
    """A model of more than 64 GiB sleeps in several registrations."""
    monkeypatch.setattr(pinning, "PIECE_MOST", 3 * PAGE)
    filled: list[Tensor] = []
    copy_ = Tensor.copy_
    weights = weights_of(build("llama"))
    monkeypatch.setattr(Tensor, "copy_", lambda self, source, *more: filled.append(self) or copy_(self, source, *more))
    run = HostRun.pinned(weights, CUDA)
    assert len(runtime.ranges) > 1
    assert all(runtime.is_pinned(piece) for piece in filled)
    target = torch.empty(run.layout.nbytes, dtype=torch.uint8)
    fill(run, target, runtime)
    assert all(
        torch.equal(raw_bytes(view), raw_bytes(w.tensor))
        for view, w in zip(run.layout.views(target), weights, strict=True)
    )
    filled.clear()


def fill(run: HostRun, target: Tensor, runtime: Runtime) -> None:
    for source, place in run.transfers(target):
        assert runtime.may_be_copied(source)
        place.copy_(source)
