"""Sleep as a GPU's weights have it: once into pinned memory, back by copies that are queued: on a double of its
streams, and on the GPU itself where there is one."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.weights import host_weights
from djinn_jupyter.engine.memory.weights.host_weights import HOST, flat_buffer
from djinn_jupyter.engine.memory.weights.residence import ResidentWeights
from djinn_jupyter.errors import OutOfDeviceMemory
from tests.device import DEVICE
from tests.families import build
from tests.streams import CUDA, Gpu, instead_of_cuda

Patch = pytest.MonkeyPatch
POISON = 0xAB  # the allocator may hand out the very memory that sleep freed, with the weights' bits still in it


@pytest.fixture
def model() -> nn.Module:
    return build("gpt2")  # its head and its embedding are one weight


@pytest.fixture
def weights(model: nn.Module, monkeypatch: Patch) -> ResidentWeights:
    """Weights that take the CPU for a GPU's memory, whose copies come late."""
    instead_of_cuda(monkeypatch, Gpu(random.Random(0)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(host_weights, "flat_buffer", lambda nbytes, device: flat_buffer(nbytes, HOST).fill_(POISON))
    monkeypatch.setattr(host_weights, "pinned_if_allowed", lambda nbytes: torch.empty(nbytes, dtype=torch.uint8))
    return ResidentWeights(model, CUDA)


def kept(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def the_same(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_are_back_with_their_bits_when_a_wake_returns(model: nn.Module, weights: ResidentWeights) -> None:
    before = kept(model)
    for _ in range(2):
        weights.sleep()
        assert not the_same(model, before)
        weights.wake()
        assert the_same(model, before)


def test_a_second_sleep_copies_nothing(weights: ResidentWeights) -> None:
    weights.sleep()
    out = weights.statistics().bytes_moved
    weights.wake()
    weights.sleep()
    assert weights.statistics().bytes_moved == 2 * out, "only the wake moved them again"


def test_a_wake_that_does_not_wait_for_its_copies_is_found(
    model: nn.Module, weights: ResidentWeights, monkeypatch: Patch
) -> None:
    before = kept(model)
    weights.sleep()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    weights.wake()
    assert not the_same(model, before)


def test_weights_that_find_no_memory_stay_asleep_until_they_do(
    model: nn.Module, weights: ResidentWeights, monkeypatch: Patch
) -> None:
    before = kept(model)
    weights.sleep()
    with monkeypatch.context() as full:

        def refuse(nbytes: int, device: torch.device) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 MiB.\nmore")

        full.setattr(host_weights, "flat_buffer", refuse)
        with pytest.raises(OutOfDeviceMemory, match=r"find no room on cuda:0 any more: .* They stay asleep"):
            weights.wake()
    assert weights.asleep
    weights.wake()
    assert the_same(model, before)


def test_sleep_gives_the_memory_back_and_a_wake_brings_the_bits_on_a_gpu() -> None:
    assert DEVICE.type == "cuda"
    model = build("gpt2").to(DEVICE)
    before = {name: value.cpu() for name, value in kept(model).items()}
    weights = ResidentWeights(model, DEVICE)
    awake = torch.cuda.memory_allocated(DEVICE)
    weights.sleep()
    assert awake - torch.cuda.memory_allocated(DEVICE) > 0.9 * weights.total
    weights.wake()
    assert the_same(model.cpu(), before)
