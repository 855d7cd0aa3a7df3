"""The interface of a model's weights, and the weights that are on the device as a whole or asleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.weights.flat import flat_buffer, return_freed
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, has_room_for
from djinn_jupyter.engine.memory.weights.mapped import MappedFiles
from djinn_jupyter.engine.memory.weights.parameters import (
    Weight,
    buffer_bytes,
    raw_sum,
    total_bytes,
    weights_of,
)
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import OutOfDeviceMemory, StorageFailed, UsageError
from djinn_jupyter.file_stamps import Stamps
from djinn_jupyter.machine import main_memory
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics

UNKNOWN: Final[Stamps] = MappingProxyType({})
Reload = Callable[[], nn.Module]
"""Loads the same model once more, from its files or its seed."""


class Weights(Protocol):
    """A model's weights. `total` is in bytes. `streamed`: layers come and go while passes run. `files` are those that
    they were read from."""

    total: int
    streamed: bool
    files: MappedFiles

    @property
    def asleep(self) -> bool: ...

    def check_sleep(self) -> None:
        """Raise the error that `sleep` would raise, and change nothing."""

    def sleep(self) -> float:
        """Free the weights' device memory. Return the seconds it took, 0 if they were asleep already."""

    def wake(self) -> float:
        """Bring the weights back for a pass. Return the seconds it took, 0 if they were awake already. Raises
        StorageFailed where the files that they are mapped from have changed."""

    def passing(self, *, alone: bool = False) -> AbstractContextManager[None]:
        """Return a context for each entry into a forward pass. Wakes the weights. `alone`: no other pass is under way,
        so a layer that was computed is not needed before those after it."""

    def values_of(self, module: nn.Module) -> dict[str, Tensor]:
        """Return a module's own parameters by name: those on the device, and on the host those that stream. The weights
        are awake."""

    def prefetch(self) -> None:
        """Fetch ahead what the next pass needs first. Called after a pass when no job is left, so that none needs other
        weights before."""

    def statistics(self) -> WeightsStatistics: ...

    def copies(self, since: int) -> tuple[LayerCopy, ...]:
        """Return single copies of streamed layers numbered above `since`, oldest first; none where no layer streams."""


class ResidentWeights:
    """All weights on the device, or each on its own of several.

    On CUDA the first `sleep` copies them into pinned host memory, and `wake` copies them back. On the CPU the host is
    the device: `sleep` frees them and `wake` loads them again, and their checksums must be unchanged.
    """

    streamed = False

    def __init__(
        self, model: nn.Module, device: torch.device, reload: Reload | None = None, stamps: Stamps = UNKNOWN
    ) -> None:
        self._model, self._device, self._reload = model, device, reload
        every = weights_of(model)
        self._weights = tuple(weight for weight in every if weight.tensor.is_contiguous())
        self._staying = buffer_bytes(model) + total_bytes(set(every) - set(self._weights))
        self._hosts: tuple[HostRun, ...] = ()  # one for each device
        self._sums: list[int] = []
        self._asleep = False
        self._moved = 0
        self.files = MappedFiles(stamps)
        self.total = total_bytes(self._weights) + self._staying

    @property
    def asleep(self) -> bool:
        return self._asleep

    def passing(self, *, alone: bool = False) -> AbstractContextManager[None]:
        if self._asleep:
            self.wake()
        return self.files

    def values_of(self, module: nn.Module) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in module.named_parameters(recurse=False)}

    def prefetch(self) -> None:
        """Do nothing: all weights are on the device."""

    def check_sleep(self) -> None:
        self.files.require_unchanged()  # the checksums are of what they are now
        if self._device.type == "cpu" and self._reload is None:
            raise UsageError(
                "These weights were given to the engine in memory and cannot be loaded again, so on the CPU they stay."
            )
        needed = total_bytes(self._weights)
        if self._device.type != "cpu" and not self._hosts and not has_room_for(needed):
            raise UsageError(
                f"The weights would take {spell_bytes(needed)} of host memory, of which "
                f"{spell_bytes(main_memory().available)} are free: they stay on the device."
            )

    def sleep(self) -> float:
        """Free the weights' device memory. Raises UsageError where they could not be brought back."""
        if self._asleep:
            return 0.0
        self.check_sleep()
        begun = time.perf_counter()
        if self._device.type == "cpu":
            self._sums = [raw_sum(weight.tensor) for weight in self._weights]
        elif not self._hosts:
            self._hosts = tuple(HostRun.pinned(own, device) for device, own in self._by_device())
            self._moved += sum(host.moved for host in self._hosts)
        for weight in self._weights:
            weight.leave()
        self._asleep = True
        return_freed(self._device)  # and of all others: the allocators of all devices are one
        return time.perf_counter() - begun

    def wake(self) -> float:
        """Bring weights back. Raises OutOfDeviceMemory, or StorageFailed if the files hold other weights by now; the
        weights stay asleep then."""
        if not self._asleep:
            self.files.require_unchanged()
            return 0.0
        begun = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad():
            back = self._copied_back() if self._hosts else self._loaded_again()
        for weight, tensor in back:
            weight.put(tensor)
        self._asleep = False
        return time.perf_counter() - begun

    def _by_device(self) -> list[tuple[torch.device, tuple[Weight, ...]]]:
        """Return the weights of each device; that of a weight which is asleep is its placeholder's."""
        devices = dict.fromkeys(weight.tensor.device for weight in self._weights)
        if len(devices) == 1:
            return [(self._device, self._weights)]
        return [(device, tuple(one for one in self._weights if one.tensor.device == device)) for device in devices]

    def _copied_back(self) -> list[tuple[Weight, Tensor]]:
        back: list[tuple[Weight, Tensor]] = []
        for (device, own), host in zip(self._by_device(), self._hosts, strict=True):
            try:
                buffer = flat_buffer(host.layout.nbytes, device)
            except torch.OutOfMemoryError as error:
                raise OutOfDeviceMemory(
                    f"The weights ({spell_bytes(host.layout.nbytes)}) find no room on {device} any more: "
                    f"{str(error).splitlines()[0]} They stay asleep; free device memory and retry."
                ) from None
            for source, target in host.transfers(buffer):
                target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
            back += zip(own, host.layout.views(buffer), strict=True)
        self._moved += sum(host.moved for host in self._hosts)
        return back

    def _loaded_again(self) -> list[tuple[Weight, Tensor]]:
        assert self._reload is not None
        stamps = self.files.now()
        again = {weight.name: weight.tensor for weight in weights_of(self._reload())}
        found = [again.get(weight.name) for weight in self._weights]
        for weight, tensor, known in zip(self._weights, found, self._sums, strict=True):
            was = weight.tensor
            same = tensor is not None and tensor.shape == was.shape and tensor.dtype == was.dtype
            if tensor is None or not same or raw_sum(tensor) != known:
                raise StorageFailed(
                    f"{weight.name} in the model's files is not what it was before they slept; "
                    "put the files back, or stop this engine and load again."
                )
        self._moved += total_bytes(self._weights)
        self.files.renew(stamps)
        there = zip(self._weights, found, strict=True)
        return [(weight, to_home(tensor, weight.tensor.device)) for weight, tensor in there if tensor is not None]

    def statistics(self) -> WeightsStatistics:
        return WeightsStatistics(
            residency="asleep" if self._asleep else "resident",
            bytes_total=self.total,
            bytes_on_device=self._staying if self._asleep else self.total,
            bytes_moved=self._moved,
        )

    def copies(self, since: int) -> tuple[LayerCopy, ...]:
        return ()


class SplitWeights(ResidentWeights):
    """Rank 0's part of the weights of a split model. It stays, as those of the other ranks do."""

    def check_sleep(self) -> None:
        raise UsageError("The weights of a model that --tensor-parallel splits stay on their devices.")
