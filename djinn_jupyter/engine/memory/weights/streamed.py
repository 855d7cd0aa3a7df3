"""The ring: a few slots on the device through which a larger model's blocks stream, one layer ahead of computing.

Knows blocks by number, and learns their order from the passes it has seen.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.weights import host_weights
from djinn_jupyter.engine.memory.weights.copy_engine import CopyEngine, copy_engine_for
from djinn_jupyter.engine.memory.weights.residence import UNKNOWN, Placement, WeightSizes
from djinn_jupyter.errors import DjinnError, OutOfDeviceMemory
from djinn_jupyter.files import Stamps
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy, RingSlot, WeightsStatistics


class RingBroken(DjinnError):
    """A slot does not hold the block it was taken for: a fault in the engine, found before it gives a wrong number."""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """Device memory for one block. `generation` counts how often it was filled; the next begins after the mark
    `freed`."""

    number: int
    buffer: Tensor
    freed: Any
    owner: int | None = None
    generation: int = 0
    arrival: Any = None
    users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lease:
    """Permission to compute with a block until it is given back. `views` are its weights."""

    block: int
    slot: int
    generation: int
    views: tuple[Tensor, ...]


class BlockOrder:
    """The cyclic order in which blocks are computed, learned from the first pass that uses them all."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._seen: list[int] = []
        self._place: dict[int, int] = {}

    @property
    def learned(self) -> tuple[int, ...] | None:
        return tuple(self._seen) if self._place else None

    def note(self, block: int) -> None:
        """Note that this block is computed now. If a block recurs before all were seen (the pass was left or went
        back), learning starts again."""
        if self._place or self._seen[-1:] == [block]:
            return
        if block in self._seen:
            self._seen.clear()
        self._seen.append(block)
        if len(self._seen) == self._blocks:
            self._place = {seen: place for place, seen in enumerate(self._seen)}

    def after(self, block: int, count: int) -> list[int]:
        """Return the next `count` blocks; none before the order is known."""
        if not self._place:
            return []
        return [self._seen[(self._place[block] + ahead) % self._blocks] for ahead in range(1, count + 1)]

    def ahead(self, block: int, now: int) -> int:
        """Return how many blocks after `now` the block `block` is computed; 0 before the order is known."""
        return (self._place[block] - self._place[now]) % self._blocks if self._place else 0


class Ring:
    """Slots for `runs`, fewer slots than runs.

    Invariants: a slot holds its owner's bytes from their arrival until its next filling begins; a slot with users is
    not filled; a block is in at most one slot; a lease is valid while its slot has the same generation. `take` fetches
    a block that is in no slot, and waits for the arrival of one under way. `filled` counts the copies into slots,
    `late` those that began only when the block was needed.
    """

    def __init__(
        self, runs: Sequence[host_weights.HostRun], slots: int, device: torch.device, copy_engine: CopyEngine
    ) -> None:
        self.runs, self.copy_engine, self.order = tuple(runs), copy_engine, BlockOrder(len(runs))
        self._count, self._device = slots, device
        self._slots: list[Slot] = []
        self._views: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._last: int | None = None
        self.late = self.filled = 0
        self.open()

    def open(self) -> None:
        """Allocate the slots' memory, unless it is allocated."""
        if self._slots:
            return
        size = max(run.layout.nbytes for run in self.runs)
        freed = self.copy_engine.mark()
        self._slots = [
            Slot(number=number, buffer=host_weights.flat_buffer(size, self._device), freed=freed)
            for number in range(self._count)
        ]

    def close(self) -> None:
        """Free the slots' memory. Raises RingBroken while a slot is in use."""
        if any(slot.users for slot in self._slots):
            raise RingBroken("The ring was closed while a layer was being computed.")
        self.settle()
        self._slots, self._views = [], {}

    def settle(self) -> None:
        """Order all copies under way before what is computed from here on. On the CPU this waits for them; on CUDA the
        computing stream will, and the host goes on."""
        for slot in self._slots:
            if slot.arrival is not None:
                self.copy_engine.wait(slot.arrival)

    @property
    def slot_bytes(self) -> int:
        return sum(slot.buffer.numel() for slot in self._slots)

    def take(self, block: int) -> Lease:
        """Return a lease on the block's weights, ready to compute with, and start the copies of the next blocks."""
        with self.copy_engine.fetching():
            return self._taken(block)

    def _taken(self, block: int) -> Lease:
        self.order.note(block)
        self._last = block
        coming = self.order.after(block, self._count - 1)
        slot = self._holding(block)
        if slot is None:
            self.late += 1
            slot = self._fill(self._victim(block, keep=()), block)
        self._await(slot)
        slot.users += 1
        for ahead in coming:
            if self._holding(ahead) is None:
                self._fill(self._victim(block, keep=(block, *coming)), ahead)
        return Lease(block=block, slot=slot.number, generation=slot.generation, views=self._shown(slot))

    def prefetch(self) -> None:
        """Fill all slots with the blocks after the last one taken, where no pass needs the present ones: the next pass
        begins with a layer in every slot. Does nothing before the order is known."""
        if self._last is None or any(slot.users for slot in self._slots):
            return
        coming = self.order.after(self._last, len(self._slots))
        for block in coming:
            if self._holding(block) is None:
                self._fill(self._victim(self._last, keep=coming), block)

    def give_back(self, lease: Lease) -> None:
        """End a lease once its computing is queued; the slot may be filled after that computing. Raises RingBroken if
        the slot was filled meanwhile."""
        slot = self._slots[lease.slot]
        self.check(lease)
        slot.users -= 1
        slot.freed = self.copy_engine.mark()

    def check(self, lease: Lease) -> None:
        """Raise RingBroken unless the slot still holds the leased block and generation."""
        slot = self._slots[lease.slot]
        if (slot.owner, slot.generation) != (lease.block, lease.generation) or slot.users < 1:
            raise RingBroken(
                f"Slot {slot.number} was taken for block {lease.block} in generation {lease.generation} and holds "
                f"block {slot.owner} in generation {slot.generation}, used by {slot.users}."
            )

    def _await(self, slot: Slot) -> None:
        """Wait for the slot's bytes. If the copy failed, clear the slot's owner, so that the block is fetched again."""
        try:
            self.copy_engine.wait(slot.arrival)
        except DjinnError:
            slot.owner = None
            raise

    def _holding(self, block: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.owner == block), None)

    def _may_fill(self, slot: Slot) -> bool:
        return slot.users == 0

    def _victim(self, now: int, keep: Sequence[int]) -> Slot:
        """Return a slot without users whose block is not in `keep`: an empty one, else the slot of the block needed
        last. Raises RingBroken if there is none."""
        free = [slot for slot in self._slots if self._may_fill(slot) and slot.owner not in keep]
        if not free:
            raise RingBroken("All slots of the ring are in use: two layers are computed at once.")
        return max(free, key=lambda slot: self._urgency(slot, now))

    def _urgency(self, slot: Slot, now: int) -> int:
        return len(self.runs) if slot.owner is None else self.order.ahead(slot.owner, now)

    def _fill(self, slot: Slot, block: int) -> Slot:
        slot.owner = block
        slot.generation += 1
        self.filled += 1
        slot.arrival = self.copy_engine.submit(self.runs[block].transfers(slot.buffer), slot.freed, block)
        return slot

    def _shown(self, slot: Slot) -> tuple[Tensor, ...]:
        assert slot.owner is not None
        key = (slot.number, slot.owner)
        if key not in self._views:
            self._views[key] = self.runs[slot.owner].layout.views(slot.buffer)
        return self._views[key]

    def slots(self) -> Iterator[tuple[int | None, int, int]]:
        """Iterate over owner, generation and users of each slot, for display."""
        return ((slot.owner, slot.generation, slot.users) for slot in self._slots)


# The used fraction of streamed bytes: layers of a mixture of experts stream whole, and each token uses a few experts.
# An expert module is recognised by its structure: its matrices are stacked along one first axis, and it is called with
# integers that index that axis. Without such a module, no fraction is reported.


class _Experts:
    """One expert module, with the set of its experts chosen since the layer arrived."""

    def __init__(self, module: nn.Module, count: int, nbytes: int) -> None:
        self.count, self.nbytes, self.known = count, nbytes, False
        self._chosen: Tensor | None = None
        module.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for given in (*args, *kwargs.values()):
            if isinstance(given, Tensor) and given.dtype in (torch.int64, torch.int32):
                if self._chosen is None:
                    self._chosen = torch.zeros(self.count, dtype=torch.bool, device=given.device)
                self._chosen.index_fill_(0, given.reshape(-1).long(), True)
                self.known = True

    def take(self) -> Tensor | float:
        """Return the share of experts not chosen, as a device tensor (0.0 if unseen), and reset the set."""
        if self._chosen is None:
            return 0.0
        unused = 1.0 - self._chosen.float().mean()
        self._chosen = None
        return unused


class RoutedUse:
    """Use of one streamed layer of `nbytes`. Call `arrived` whenever the layer is taken."""

    def __init__(self, layer: nn.Module, nbytes: int) -> None:
        self.nbytes = nbytes
        self._experts = [
            _Experts(module, *stacked) for module in layer.modules() if (stacked := _stacked(module)) is not None
        ]
        self._generation: int | None = None
        self.arrivals = 0
        self._unused: Tensor | float = 0.0

    def arrived(self, generation: int) -> None:
        """Count an arrival. A layer taken again in the same generation was moved once, and all its choices count."""
        if generation == self._generation:
            return
        if self._generation is not None:
            self.arrivals += 1
            for experts in self._experts:
                self._unused = self._unused + experts.take() * experts.nbytes
        self._generation = generation

    @property
    def known(self) -> bool:
        return any(experts.known for experts in self._experts)

    @property
    def unused(self) -> float:
        """Bytes that arrived and were not used, over all completed arrivals."""
        return float(self._unused)


def used_fraction(layers: Sequence[RoutedUse]) -> float | None:
    """Return the used fraction of the arrived bytes; None where no layer's choices are visible or nothing arrived."""
    arrived = sum(layer.arrivals * layer.nbytes for layer in layers)
    if not arrived or not any(layer.known for layer in layers):
        return None
    return 1.0 - sum(layer.unused for layer in layers) / arrived


def _stacked(module: nn.Module) -> tuple[int, int] | None:
    """Return number and bytes of the experts of a module whose own parameters are all stacked along one first axis."""
    own = list(module.parameters(recurse=False))
    stacks = {parameter.shape[0] for parameter in own}
    if not own or len(stacks) != 1 or not any(parameter.ndim == 3 for parameter in own):
        return None
    count = stacks.pop()
    return (count, sum(parameter.numel() * parameter.element_size() for parameter in own)) if count > 1 else None


# A model whose layers stream through a ring while its passes run: each layer's forward takes its weights and gives
# them back. A layer that is not in a slot has placeholders for weights. The layer's computation is unchanged;
# embeddings, norms, head, buffers and weights that several layers share never stream.

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
        every = host_weights.weights_of(model)
        others = _others(every, self._blocks)
        self._staying = [weight for weight in others if weight.tensor.is_contiguous()]
        self._fixed = host_weights.buffer_bytes(model) + host_weights.total_bytes(set(others) - set(self._staying))
        self.total = host_weights.total_bytes(every) + host_weights.buffer_bytes(model)
        runs = _host_runs(self._blocks, device)
        self.held_on_host = host_weights.bytes_in_memory(piece for run in runs for piece in run.pieces)
        self.copy_engine = copy_engine or copy_engine_for(device)
        self._host = host_weights.HostRun.as_loaded(self._staying, device)
        for weight in (*self._staying, *(weight for block in self._blocks for weight in block)):
            weight.put(host_weights.placeholder(weight.tensor, device))
        model.to(device)
        self.ring = Ring(runs, placement.slots, device, self.copy_engine)
        self._settle_in()
        self._routed = [
            RoutedUse(layers[layer], run.moved) for layer, run in zip(placement.streaming, runs, strict=True)
        ]
        self._used: float | None = None
        self._used_at = float("-inf")
        self.asleep = self._alone = False
        for block, layer in enumerate(placement.streaming):
            layers[layer].forward = self._through_ring(block, layers[layer].forward)
        self.files = host_weights.MappedFiles(stamps)

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
        if self.asleep:
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
        if not self.asleep and self.files.changed is None:
            self.ring.prefetch()

    def check_sleep(self) -> None:
        """Do nothing: all weights are on the host already, so nothing prevents `sleep`."""

    def sleep(self) -> float:
        """Free the slots and the weights that stay; nothing has to be copied."""
        if self.asleep:
            return 0.0
        begun = time.perf_counter()
        self.ring.close()
        for weight in self._staying:
            weight.leave()
        self.asleep = True
        host_weights.return_freed(self._device)
        return time.perf_counter() - begun

    def wake(self) -> float:
        self.files.require_unchanged()
        if not self.asleep:
            return 0.0
        begun = time.perf_counter()
        self._settle_in()
        self.asleep = False
        return time.perf_counter() - begun

    def _settle_in(self) -> None:
        """Take the slots and copy the weights that stay to the device, into one flat buffer. Raises
        OutOfDeviceMemory."""
        try:
            self.ring.open()
            buffer = host_weights.flat_buffer(self._host.layout.nbytes, self._device)
        except torch.OutOfMemoryError as error:
            self.ring.close()
            raise OutOfDeviceMemory(
                f"{self._device} has no room for the {spell_bytes(self._placement.device_bytes)} of weights that "
                f"stay there: {str(error).splitlines()[0]} Free device memory and try again."
            ) from None
        self.copy_engine.wait(self.copy_engine.submit(self._host.transfers(buffer), self.copy_engine.mark()))
        for weight, view in zip(self._staying, self._host.layout.views(buffer), strict=True):
            weight.put(view)

    @property
    def bytes_per_pass(self) -> int:
        return sum(run.moved for run in self.ring.runs)

    def statistics(self) -> WeightsStatistics:
        totals = self.copy_engine.statistics()
        there = 0 if self.asleep else self._host.layout.nbytes + self.ring.slot_bytes
        return WeightsStatistics(
            residency="asleep" if self.asleep else "streamed",
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
        """Return the used fraction. On a GPU read at most once a second, as it waits for all queued work."""
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


def own_weights(model: nn.Module, layers: Sequence[nn.Module]) -> list[tuple[host_weights.Weight, ...]]:
    """Return for each layer the contiguous weights that no other part of the model has. If all layers lie in memory in
    the same order, as in a file, they are returned in that order, so that adjacent weights are one copy."""
    everywhere = _places(model)
    own = []
    for layer in layers:
        inside = _places(layer)
        alone = {place for place, times in inside.items() if times == everywhere[place]}
        movable = (weight for weight in host_weights.weights_of(layer) if weight.tensor.is_contiguous())
        own.append(tuple(weight for weight in movable if all(id(p) in alone for p in weight.parameters)))
    placed = [tuple(sorted(weights, key=lambda weight: weight.tensor.data_ptr())) for weights in own]
    return placed if len({tuple(weight.name for weight in weights) for weights in placed}) == 1 else own


def _places(module: nn.Module) -> Counter[int]:
    """Count how many modules hold each parameter, by its id."""
    return Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)


def sizes_of(model: nn.Module, layers: Sequence[nn.Module]) -> WeightSizes:
    """Return the sizes of a model's weights. Works on the meta device too, except for some bytes of alignment."""
    every, own = host_weights.weights_of(model), own_weights(model, layers)
    rest = _others(every, own)
    return WeightSizes(
        total=host_weights.total_bytes(every) + host_weights.buffer_bytes(model),
        rest=host_weights.Layout.of(rest).nbytes + host_weights.buffer_bytes(model),
        layers=tuple(host_weights.Layout.of(weights).nbytes for weights in own),
    )


def _others(
    every: Iterable[host_weights.Weight], blocks: Iterable[Iterable[host_weights.Weight]]
) -> list[host_weights.Weight]:
    streaming = {id(parameter) for block in blocks for weight in block for parameter in weight.parameters}
    return [weight for weight in every if not any(id(parameter) in streaming for parameter in weight.parameters)]


def _host_runs(blocks: Sequence[Sequence[host_weights.Weight]], device: torch.device) -> list[host_weights.HostRun]:
    """Return the blocks' runs, pinned where a CUDA device reads and the host has room; else as loaded."""
    needed = sum(host_weights.total_bytes(block) for block in blocks)
    if device.type == "cuda" and host_weights.has_room_for(needed):
        return [host_weights.HostRun.pinned(block, device) for block in blocks]
    return [host_weights.HostRun.as_loaded(block, device) for block in blocks]
