"""The interface of a model's weights, and the weights that are on the device as a whole or asleep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.weights import host_weights
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import DjinnError, ModelDoesNotFit, OutOfDeviceMemory, StorageFailed, UsageError
from djinn_jupyter.files import Stamps
from djinn_jupyter.machine import main_memory
from djinn_jupyter.settings import SettledOptions
from djinn_jupyter.units import spell_bytes, spell_option, spell_rate
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics

UNKNOWN: Final[Stamps] = MappingProxyType({})
Reload = Callable[[], nn.Module]
"""Loads the same model once more, from its files or its seed."""


class Weights(Protocol):
    """A model's weights. `total` is in bytes. `streamed`: layers come and go while passes run. `files` are their
    source."""

    total: int
    streamed: bool
    files: host_weights.MappedFiles

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
        """Return a module's own parameters by name: on the device, streamed ones on the host. The weights are awake."""

    def prefetch(self) -> None:
        """Fetch ahead what the next pass needs first. Called after a pass without other jobs, which might need other
        weights."""

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
        every = host_weights.weights_of(model)
        self._weights = tuple(weight for weight in every if weight.tensor.is_contiguous())
        self._staying = host_weights.buffer_bytes(model) + host_weights.total_bytes(set(every) - set(self._weights))
        self._hosts: tuple[host_weights.HostRun, ...] = ()  # one for each device
        self._sums: list[int] = []
        self.asleep = False
        self._moved = 0
        self.files = host_weights.MappedFiles(stamps)
        self.total = host_weights.total_bytes(self._weights) + self._staying

    def passing(self, *, alone: bool = False) -> AbstractContextManager[None]:
        if self.asleep:
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
        needed = host_weights.total_bytes(self._weights)
        if self._device.type != "cpu" and not self._hosts and not host_weights.has_room_for(needed):
            raise UsageError(
                f"The weights would take {spell_bytes(needed)} of host memory, of which "
                f"{spell_bytes(main_memory().available)} are free: they stay on the device."
            )

    def sleep(self) -> float:
        """Free the weights' device memory. Raises UsageError where they could not be brought back."""
        if self.asleep:
            return 0.0
        self.check_sleep()
        begun = time.perf_counter()
        if self._device.type == "cpu":
            self._sums = [host_weights.raw_sum(weight.tensor) for weight in self._weights]
        elif not self._hosts:
            self._hosts = tuple(host_weights.HostRun.pinned(own, device) for device, own in self._by_device())
            self._moved += sum(host.moved for host in self._hosts)
        for weight in self._weights:
            weight.leave()
        self.asleep = True
        host_weights.return_freed(self._device)  # and of all others: the allocators of all devices are one
        return time.perf_counter() - begun

    def wake(self) -> float:
        """Bring weights back. Raises OutOfDeviceMemory, or StorageFailed if the files hold other weights by now; the
        weights stay asleep then."""
        if not self.asleep:
            self.files.require_unchanged()
            return 0.0
        begun = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad():
            back = self._copied_back() if self._hosts else self._loaded_again()
        for weight, tensor in back:
            weight.put(tensor)
        self.asleep = False
        return time.perf_counter() - begun

    def _by_device(self) -> list[tuple[torch.device, tuple[host_weights.Weight, ...]]]:
        """Return the weights of each device; a weight that is asleep has its placeholder's device."""
        devices = dict.fromkeys(weight.tensor.device for weight in self._weights)
        if len(devices) == 1:
            return [(self._device, self._weights)]
        return [(device, tuple(one for one in self._weights if one.tensor.device == device)) for device in devices]

    def _copied_back(self) -> list[tuple[host_weights.Weight, Tensor]]:
        back: list[tuple[host_weights.Weight, Tensor]] = []
        for (device, own), host in zip(self._by_device(), self._hosts, strict=True):
            try:
                buffer = host_weights.flat_buffer(host.layout.nbytes, device)
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

    def _loaded_again(self) -> list[tuple[host_weights.Weight, Tensor]]:
        assert self._reload is not None
        stamps = self.files.now()
        again = {weight.name: weight.tensor for weight in host_weights.weights_of(self._reload())}
        found = [again.get(weight.name) for weight in self._weights]
        for weight, tensor, known in zip(self._weights, found, self._sums, strict=True):
            was = weight.tensor
            same = tensor is not None and tensor.shape == was.shape and tensor.dtype == was.dtype
            if tensor is None or not same or host_weights.raw_sum(tensor) != known:
                raise StorageFailed(
                    f"{weight.name} in the model's files is not what it was before they slept; "
                    "put the files back, or stop this engine and load again."
                )
        self._moved += host_weights.total_bytes(self._weights)
        self.files.renew(stamps)
        there = zip(self._weights, found, strict=True)
        return [(weight, to_home(tensor, weight.tensor.device)) for weight, tensor in there if tensor is not None]

    def statistics(self) -> WeightsStatistics:
        return WeightsStatistics(
            residency="asleep" if self.asleep else "resident",
            bytes_total=self.total,
            bytes_on_device=self._staying if self.asleep else self.total,
            bytes_moved=self._moved,
        )

    def copies(self, since: int) -> tuple[LayerCopy, ...]:
        return ()


class SplitWeights(ResidentWeights):
    """Rank 0's part of the weights of a split model. It stays, as those of the other ranks do."""

    def check_sleep(self) -> None:
        raise UsageError("The weights of a model that --tensor-parallel splits stay on their devices.")


class PackedWeights(ResidentWeights):
    """Weights that a library keeps packed. They stay: what the library made of them is not what a load reads again."""

    def check_sleep(self) -> None:
        raise UsageError("Packed weights (docs/quantized.md) stay on the device: stop the engine to free it.")


SLOTS = 2
PAGES_SHARE = 8  # an eighth of the allowed memory is kept for pages


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """A model's sizes in bytes: `total` of its weights and buffers; as laid out in flat buffers, `layers` the weights
    that each decoder layer alone has, and `rest` all that always stays: embeddings, norms, head, shared weights."""

    total: int
    rest: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The layers `streaming` through `slots` slots; the others stay. `link` is the measured copy bandwidth in bytes per
    second, `pages` the least bytes needed for pages."""

    sizes: WeightSizes
    allowed: int
    streaming: tuple[int, ...]
    slots: int
    link: float | None = None
    pages: int = 0

    @property
    def slot_bytes(self) -> int:
        return max(self.sizes.layers[layer] for layer in self.streaming)

    @property
    def bytes_per_pass(self) -> int:
        return sum(self.sizes.layers[layer] for layer in self.streaming)

    @property
    def device_bytes(self) -> int:
        """Device bytes that the weights take: all that stays, and the slots."""
        staying = sum(self.sizes.layers) - self.bytes_per_pass
        return self.sizes.rest + staying + self.slots * self.slot_bytes

    @property
    def page_bytes(self) -> int:
        return self.allowed - self.device_bytes

    @property
    def seconds_per_pass(self) -> float | None:
        """The least seconds that a pass takes, by the link alone."""
        return None if self.link is None else self.bytes_per_pass / self.link

    @property
    def enough(self) -> int:
        """The least allowed bytes with which nothing streams and pages have room."""
        return max(-(-self.sizes.total * PAGES_SHARE // (PAGES_SHARE - 1)), self.sizes.total + self.pages)

    def lines(self) -> Iterator[str]:
        staying = len(self.sizes.layers) - len(self.streaming)
        yield (
            f"{spell_bytes(self.sizes.total)} of weights, {spell_bytes(self.allowed)} allowed: "
            f"{staying} of {len(self.sizes.layers)} layers stay, with embeddings, norms and head; "
            f"{len(self.streaming)} layers stream through {self.slots} slots, "
            f"{spell_bytes(self.bytes_per_pass)} in each pass; {spell_bytes(self.page_bytes)} are left for pages"
        )
        if self.seconds_per_pass is not None and self.link is not None:
            yield (
                f"at the measured {spell_rate(self.link)} a token takes at least {_time(self.seconds_per_pass)}; "
                f"with --device-memory {spell_option(self.enough)} nothing would stream"
            )


def fits(total: int, allowed: int) -> bool:
    """True if all weights may stay. The memory that they leave is for pages, however little."""
    return total < allowed


def place(
    sizes: WeightSizes, allowed: int, *, slots: int = SLOTS, link: float | None = None, pages: int = 0
) -> Placement:
    """Return the placement that streams the fewest layers and leaves an eighth, and at least `pages` bytes, for pages.
    Raises ModelDoesNotFit, with the arithmetic, where there is none.

    The streaming layers are in groups as even as can be, with a layer that stays between two of them and the head,
    sampling and the next embedding behind the last: while these compute, the link gets ahead again.
    """
    room = allowed - max(allowed // PAGES_SHARE, pages)
    count = len(sizes.layers)
    for streaming in range(slots + 1, count + 1):
        staying = _between_groups(streaming, count - streaming)
        chosen = tuple(layer for layer in range(count) if layer not in staying)
        placement = Placement(sizes=sizes, allowed=allowed, streaming=chosen, slots=slots, link=link, pages=pages)
        if placement.device_bytes <= room:
            return placement
    raise ModelDoesNotFit(_too_large(sizes, allowed, slots, pages))


def _between_groups(streaming: int, staying: int) -> set[int]:
    """Return the layers that stay: one behind each group of those that stream, but for the last group."""
    return {(group + 1) * streaming // (staying + 1) + group for group in range(staying)}


def _too_large(sizes: WeightSizes, allowed: int, slots: int, pages: int) -> str:
    largest = max(sizes.layers, default=0)
    least = sizes.rest + slots * largest
    with_share = -(-least * PAGES_SHARE // (PAGES_SHARE - 1))
    needed = max(with_share, least + pages)
    for_pages = "an eighth for pages" if needed == with_share else f"{spell_bytes(pages)} for a few pages"
    return (
        f"The model has {spell_bytes(sizes.total)} of weights. Even if all its {len(sizes.layers)} layers stream, "
        f"{spell_bytes(sizes.rest)} outside the layers have to stay and {slots} slots take "
        f"{spell_bytes(slots * largest)}, with {for_pages} {spell_bytes(needed)} in all, and --device-memory "
        f"allows {spell_bytes(allowed)}; allow more or take a smaller model."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


log = logging.getLogger(__name__)
CUDA_SECONDS = 900.0


class IdleSleep:
    """The idle timer. The engine calls `tell` after work and when idle. By default 900 s on CUDA, else never."""

    def __init__(
        self,
        weights: Weights,
        options: SettledOptions,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._clock = weights, clock
        usual = CUDA_SECONDS if device.type == "cuda" else float("inf")
        self._seconds = usual if options.sleep_seconds is None else options.sleep_seconds
        self._worked = clock()

    def observe(self, busy: bool) -> None:
        if busy:
            self._worked = self._clock()
        elif self._clock() - self._worked >= self._seconds and not self._weights.asleep:
            self._sleep()

    def _sleep(self) -> None:
        try:
            took = self._weights.sleep()
        except DjinnError as error:
            log.info("No sleep, now or later: %s", error)
            self._seconds = float("inf")
        else:
            log.info("Without work for %.0f s: the weights have left the device in %.2f s", self._seconds, took)
