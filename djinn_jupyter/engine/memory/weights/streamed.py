"""A model whose layers stream through a ring while its passes run: each layer's forward takes its weights and gives
them back.

A layer that is not in a slot has placeholders for weights. The layer's computation is unchanged; embeddings, norms,
head, buffers and weights that several layers share never stream.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.weights.copy_engine import CopyEngine, copy_engine_for
from djinn_jupyter.engine.memory.weights.flat import Layout, flat_buffer, return_freed
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, has_room_for
from djinn_jupyter.engine.memory.weights.mapped import MappedFiles, bytes_in_memory
from djinn_jupyter.engine.memory.weights.parameters import (
    Weight,
    buffer_bytes,
    placeholder,
    total_bytes,
    weights_of,
)
from djinn_jupyter.engine.memory.weights.placement import Placement, WeightSizes
from djinn_jupyter.engine.memory.weights.residence import UNKNOWN
from djinn_jupyter.engine.memory.weights.ring import Ring
from djinn_jupyter.engine.memory.weights.routed import RoutedUse, used_fraction
from djinn_jupyter.errors import OutOfDeviceMemory
from djinn_jupyter.file_stamps import Stamps
from djinn_jupyter.wire.nouns import LayerCopy, RingSlot, WeightsStatistics

USED_SECONDS = 1.0


class StreamedWeights:
    """The weights of `model`, placed on `device` according to `placement`. The model is given on the host."""

    streamed = True

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        placement: Placement,
        device: torch.device,
        copy_engine: CopyEngine | None = None,
        stamps: Stamps = UNKNOWN,
    ) -> None:
        self._device, self._placement = device, placement
        own = own_weights(model, layers)
        self._blocks = [own[layer] for layer in placement.streaming]
        every = weights_of(model)
        others = _others(every, self._blocks)
        self._staying = [weight for weight in others if weight.tensor.is_contiguous()]
        self._fixed = buffer_bytes(model) + total_bytes(set(others) - set(self._staying))
        self.total = total_bytes(every) + buffer_bytes(model)
        runs = _host_runs(self._blocks, device)
        self.held_on_host = bytes_in_memory(piece for run in runs for piece in run.pieces)
        self.copy_engine = copy_engine or copy_engine_for(device)
        self._host = HostRun.as_loaded(self._staying, device)
        for weight in (*self._staying, *(weight for block in self._blocks for weight in block)):
            weight.put(placeholder(weight.tensor, device))
        model.to(device)
        self.ring = Ring(runs, placement.slots, device, self.copy_engine)
        self._settle_in()
        self._routed = [
            RoutedUse(layers[layer], run.moved) for layer, run in zip(placement.streaming, runs, strict=True)
        ]
        self._used: float | None = None
        self._used_at = float("-inf")
        self._asleep = self._alone = False
        for block, layer in enumerate(placement.streaming):
            layers[layer].forward = self._through_ring(block, layers[layer].forward)
        self.files = MappedFiles(stamps)

    # --- passes ----------------------------------------------------------------------------------------------------

    def _through_ring(self, block: int, run: Callable[..., Any]) -> Callable[..., Any]:
        weights, routed = self._blocks[block], self._routed[block]
        placeholders = [weight.tensor for weight in weights]

        @functools.wraps(run)
        def forward(*args: Any, **kwargs: Any) -> Any:
            lease = self.ring.take(block)
            routed.arrived(lease.generation)
            for weight, view in zip(weights, lease.views, strict=True):
                weight.put(view)
            try:
                output = run(*args, **kwargs)
            finally:
                for weight, away in zip(weights, placeholders, strict=True):
                    weight.put(away)
                self.ring.give_back(lease)
            if self._alone:
                self.ring.prefetch()
            return output

        return forward

    @contextmanager
    def passing(self, *, alone: bool = False) -> Iterator[None]:
        if self._asleep:
            self.wake()
        before, self._alone = self._alone, alone
        try:
            with self.files, self.copy_engine.passing():
                yield
        finally:
            self._alone = before

    def values_of(self, module: nn.Module) -> dict[str, Tensor]:
        own = dict(module.named_parameters(recurse=False))
        wanted = {id(parameter) for parameter in own.values()}
        away: dict[int, Tensor] = {}
        for weights, run in zip(self._blocks, self.ring.runs, strict=True):
            if any(id(parameter) in wanted for weight in weights for parameter in weight.parameters):
                views = zip(weights, run.views(), strict=True)
                away |= {id(parameter): view for weight, view in views for parameter in weight.parameters}
        return {name: away.get(id(parameter), parameter.data) for name, parameter in own.items()}

    def prefetch(self) -> None:
        if not self._asleep and self.files.changed is None:
            self.ring.prefetch()

    # --- sleep -----------------------------------------------------------------------------------------------------

    @property
    def asleep(self) -> bool:
        return self._asleep

    def check_sleep(self) -> None:
        """Do nothing: all weights are on the host already, so nothing prevents `sleep`."""

    def sleep(self) -> float:
        """Free the slots and the weights that stay; nothing has to be copied."""
        if self._asleep:
            return 0.0
        begun = time.perf_counter()
        self.ring.close()
        for weight in self._staying:
            weight.leave()
        self._asleep = True
        return_freed(self._device)
        return time.perf_counter() - begun

    def wake(self) -> float:
        self.files.require_unchanged()
        if not self._asleep:
            return 0.0
        begun = time.perf_counter()
        self._settle_in()
        self._asleep = False
        return time.perf_counter() - begun

    def _settle_in(self) -> None:
        """Take the slots and copy the weights that stay to the device, into one flat buffer. Raises
        OutOfDeviceMemory."""
        try:
            self.ring.open()
            buffer = flat_buffer(self._host.layout.nbytes, self._device)
        except torch.OutOfMemoryError as error:
            self.ring.close()
            raise OutOfDeviceMemory(
                f"{self._device} has no room for the {spell_bytes(self._placement.device_bytes)} of weights that "
                f"stay there: {str(error).splitlines()[0]} Free device memory and try again."
            ) from None
        self.copy_engine.wait(self.copy_engine.submit(self._host.transfers(buffer), self.copy_engine.mark()))
        for weight, view in zip(self._staying, self._host.layout.views(buffer), strict=True):
            weight.put(view)

    # --- accounting ------------------------------------------------------------------------------------------------

    @property
    def bytes_per_pass(self) -> int:
        return sum(run.moved for run in self.ring.runs)

    def statistics(self) -> WeightsStatistics:
        totals = self.copy_engine.statistics()
        there = 0 if self._asleep else self._host.layout.nbytes + self.ring.slot_bytes
        return WeightsStatistics(
            residency="asleep" if self._asleep else "streamed",
            bytes_total=self.total,
            bytes_on_device=self._fixed + there,
            bytes_streamed_per_pass=self.bytes_per_pass,
            layers_streamed=len(self._blocks),
            ring_slots=self._placement.slots,
            ring=tuple(self._ring_slots()),
            layer_copies=self.ring.filled,
            bytes_moved=totals.nbytes,
            copy_gigabytes_per_second=totals.nbytes / totals.copy_seconds / 1e9 if totals.copy_seconds else None,
            waited_seconds=totals.waited_seconds,
            pass_seconds=totals.pass_seconds,
            used_fraction=self._used_fraction(),
            bytes_held_on_host=self.held_on_host,
            link_bytes_per_second=self._placement.link,
            bytes_enough=self._placement.enough,
        )

    def _used_fraction(self) -> float | None:
        """Return the used fraction. On a GPU it is read at most once a second, since reading waits for all queued
        work."""
        now = time.monotonic()
        if self._device.type == "cpu" or now - self._used_at >= USED_SECONDS:
            self._used, self._used_at = used_fraction(self._routed), now
        return self._used

    def _ring_slots(self) -> Iterator[RingSlot]:
        size = self.ring.slot_bytes // self._placement.slots
        for owner, generation, users in self.ring.slots():
            layer = None if owner is None else self._placement.streaming[owner]
            yield RingSlot(layer=layer, generation=generation, bytes_allocated=size, computing=users > 0)

    def copies(self, since: int) -> tuple[LayerCopy, ...]:
        copies = self.copy_engine.copies(since)
        overlapped = self.copy_engine.computed_during(copies)
        return tuple(
            LayerCopy(
                number=copy.number,
                layer=self._placement.streaming[copy.block],
                bytes_moved=copy.nbytes,
                seconds=copy.seconds,
                begun=copy.begun,
                stalled_seconds=copy.stalled,
                overlapped_seconds=meanwhile,
            )
            for copy, meanwhile in zip(copies, overlapped, strict=True)
        )


def own_weights(model: nn.Module, layers: Sequence[nn.Module]) -> list[tuple[Weight, ...]]:
    """Return for each layer the contiguous weights that no other part of the model has. If all layers lie in memory in
    the same order, as in a file, they are returned in that order, so that adjacent weights are one copy."""
    everywhere = _places(model)
    own = []
    for layer in layers:
        inside = _places(layer)
        alone = {place for place, times in inside.items() if times == everywhere[place]}
        movable = (weight for weight in weights_of(layer) if weight.tensor.is_contiguous())
        own.append(tuple(weight for weight in movable if all(id(p) in alone for p in weight.parameters)))
    placed = [tuple(sorted(weights, key=lambda weight: weight.tensor.data_ptr())) for weights in own]
    return placed if len({tuple(weight.name for weight in weights) for weights in placed}) == 1 else own


def _places(module: nn.Module) -> Counter[int]:
    """Count how many modules hold each parameter, by its id."""
    return Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)


def sizes_of(model: nn.Module, layers: Sequence[nn.Module]) -> WeightSizes:
    """Return the sizes of a model's weights. Works on the meta device too, except for some bytes of alignment."""
    every, own = weights_of(model), own_weights(model, layers)
    rest = _others(every, own)
    return WeightSizes(
        total=total_bytes(every) + buffer_bytes(model),
        rest=Layout.of(rest).nbytes + buffer_bytes(model),
        layers=tuple(Layout.of(weights).nbytes for weights in own),
    )


def _others(every: Iterable[Weight], blocks: Iterable[Iterable[Weight]]) -> list[Weight]:
    streaming = {id(parameter) for block in blocks for weight in block for parameter in weight.parameters}
    return [weight for weight in every if not any(id(parameter) in streaming for parameter in weight.parameters)]


def _host_runs(blocks: Sequence[Sequence[Weight]], device: torch.device) -> list[HostRun]:
    """Return the blocks' runs, pinned where a CUDA device reads and the host has room; else as loaded, perhaps in the
    page cache."""
    needed = sum(total_bytes(block) for block in blocks)
    if device.type == "cuda" and has_room_for(needed):
        return [HostRun.pinned(block, device) for block in blocks]
    return [HostRun.as_loaded(block, device) for block in blocks]
