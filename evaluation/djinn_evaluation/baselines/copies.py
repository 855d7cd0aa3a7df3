"""Plain copies by hand, into memory that was in use before: one by one, beside whatever else the process does, and of
layers through two slots; and the link between host and device by them.

A thread copies on the CPU, a side stream on CUDA. On the CPU a slot keeps every weight's address modulo ALIGNMENT, for
matrix products have other last bits at others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from djinn_evaluation.baselines.asking import serve

ALIGNMENT: Final = 512
Way = Callable[[Any, Any], None]


def by_torch(source: Any, target: Any) -> None:
    target.copy_(source, non_blocking=True)


def by_memcpy(source: Any, target: Any) -> None:
    """Copy bytes by NumPy, past the caches: 6.0 GB/s against torch's 4.7, layers of 51 MB on a Xeon."""
    target[:] = source


WAYS: Final = (by_torch, by_memcpy)  # on the CPU; torch alone reaches a GPU


def taken_by(way: Way, tensor: Tensor) -> Any:
    """Return a contiguous tensor as a way takes it: this is no part of the copy, and small copies would show it."""
    return tensor.reshape(-1).view(torch.uint8).numpy() if way is by_memcpy else tensor


@dataclass(slots=True, kw_only=True)
class Sample:
    """One copy of a layer: `begun` in seconds since the epoch, `stalled` the seconds that computing waited for it."""

    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    stalled: float = 0.0


class HostCopier:
    """Copies in one thread, by `way`. A copy is over when its future, which has its sample, is done."""

    ways: tuple[Way, ...] = WAYS

    def __init__(self) -> None:
        self._thread, self.way = ThreadPoolExecutor(1), by_memcpy
        self.samples: list[Sample] = []

    def begin(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Future[Sample]:
        both = [[taken_by(self.way, tensor) for tensor in side] for side in (sources, targets)]
        return self._thread.submit(self._copy, self.way, *both)

    def wait(self, arrival: Future[Sample]) -> None:
        over, begun = arrival.done(), time.perf_counter()
        arrival.result().stalled += 0.0 if over else time.perf_counter() - begun

    def settle(self) -> None:
        self._thread.submit(lambda: None).result()

    @torch.inference_mode()  # as the thread whose weights these are
    def _copy(self, way: Way, sources: Sequence[Any], targets: Sequence[Any]) -> Sample:
        sample = Sample(nbytes=sum(source.nbytes for source in sources), begun=time.time())
        begun = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            way(source, target)
        sample.seconds = time.perf_counter() - begun
        self.samples.append(sample)
        return sample


@dataclass(slots=True, kw_only=True, eq=False)
class LayerCopyEvents:
    """A copy on a stream: the events of its beginning and end, and those around each wait for it."""

    nbytes: int
    begun: Any
    done: Any
    waits: list[tuple[Any, Any]]


class StreamCopier:
    """Copies on a side stream; each copy is timed between two events, and so is each wait of the computing stream."""

    ways: tuple[Way, ...] = (by_torch,)

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream, self.way = device, torch.cuda.Stream(device), by_torch
        self._timed: list[LayerCopyEvents] = []
        self._opening = self._event(self._stream)
        self._opening.synchronize()
        self._opened = time.time()

    def begin(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> LayerCopyEvents:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            begun = self._event(self._stream)
            for source, target in zip(sources, targets, strict=True):
                self.way(source, target)
            nbytes = sum(source.nbytes for source in sources)
            copy = LayerCopyEvents(nbytes=nbytes, begun=begun, done=self._event(self._stream), waits=[])
        self._timed.append(copy)
        return copy

    def wait(self, arrival: LayerCopyEvents) -> None:
        stream = torch.cuda.current_stream(self._device)
        begun = self._event(stream)
        stream.wait_event(arrival.done)
        arrival.waits.append((begun, self._event(stream)))

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    @property
    def samples(self) -> list[Sample]:
        return [
            Sample(
                nbytes=copy.nbytes,
                seconds=copy.begun.elapsed_time(copy.done) / 1e3,
                begun=self._opened + self._opening.elapsed_time(copy.begun) / 1e3,
                stalled=sum(begun.elapsed_time(over) for begun, over in copy.waits) / 1e3,
            )
            for copy in self._timed
        ]

    def _event(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


def copier_for(device: torch.device) -> Any:
    return StreamCopier(device) if device.type == "cuda" else HostCopier()


class Copying:
    """Copies of `layers` into two slots in turn, beside a pass or one layer ahead, by the quickest way so far."""

    def __init__(self, copier: Any, layers: Sequence[Sequence[Tensor]], slots: Sequence[Sequence[Tensor]]) -> None:
        self._copier, self._layers = copier, layers
        self._views = [[views(slot, layer) for slot in slots] for layer in layers]
        self._arrivals: list[Any] = [None, None]
        self._least: dict[Way, float] = {}
        self.copy()  # the first touch of the slots is slow
        self._least.clear()
        self.copy()

    def begin(self) -> None:
        self._owner: list[int | None] = [None, None]
        pairs = enumerate(zip(self._layers, self._views, strict=True))
        self._begun = [self._copier.begin(layer, targets[number % 2]) for number, (layer, targets) in pairs]

    def wait(self) -> None:
        for arrival in self._begun:
            self._copier.wait(arrival)
        self._copier.settle()

    def copy(self) -> float:
        """Copy every layer once by each way there is, while nothing is computed; return the seconds of the quickest."""
        seconds = {way: self._by(way) for way in self._copier.ways}
        self._least = {way: min(each, self._least.get(way, each)) for way, each in seconds.items()}
        self._copier.way = min(self._least, key=self._least.__getitem__)
        return min(seconds.values())

    def _by(self, way: Way) -> float:
        self._copier.way, begun = way, time.perf_counter()
        self.begin()
        self.wait()
        return time.perf_counter() - begun

    def take(self, number: int) -> list[Tensor]:
        """Wait for a layer, begin copying the next one to the other slot, and return the layer."""
        if number not in self._owner:
            self._fetch(number, 0)
        slot = self._owner.index(number)
        self._copier.wait(self._arrivals[slot])
        self._fetch((number + 1) % len(self._layers), 1 - slot)
        return self._views[number][slot]

    def _fetch(self, number: int, slot: int) -> None:
        self._owner[slot] = number
        self._arrivals[slot] = self._copier.begin(self._layers[number], self._views[number][slot])


def views(slot: Sequence[Tensor], layer: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a slot that are as a layer's weights are, on the CPU at their addresses modulo ALIGNMENT."""
    return [_view(raw, like) for raw, like in zip(slot, layer, strict=False)]


def _view(raw: Tensor, like: Tensor) -> Tensor:
    phase = like.data_ptr() % ALIGNMENT if raw.device.type == "cpu" else 0
    begin = (phase - raw.data_ptr()) % ALIGNMENT
    return raw[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def seconds_of(source: Tensor, target: Tensor, way: Way = by_torch) -> float:
    """Copy once while nothing else is done; return the seconds until it is over."""
    if "cuda" not in (source.device.type, target.device.type):
        bytes_there, room = taken_by(way, source), taken_by(way, target)
        began = time.perf_counter()
        way(bytes_there, room)
        return time.perf_counter() - began
    begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    way(source, target)
    done.record()
    done.synchronize()
    milliseconds: float = begun.elapsed_time(done)
    return milliseconds / 1e3


# Without a GPU both are main memory. There small copies stay in the processor's caches, as those of a small model do,
# and some threads copy together; the fastest is what no honest copy exceeds.
SIZES = (1 << 18, 1 << 20, 1 << 23, 1 << 26)  # bytes
ROUNDS, SECONDS = 5, 0.02  # of each size at least; a round more while these seconds last


class CopiedLink:
    def measure(self, device: str) -> dict[str, Any]:
        """Return bytes and least seconds of copies of each size, `in` and `out`; on the CPU both are the same."""
        place = torch.device(device)
        ways = WAYS if place.type == "cpu" else (by_torch,)
        counts = {1, torch.get_num_threads()} if place.type == "cpu" else {torch.get_num_threads()}
        found: dict[str, list[tuple[int, float]]] = {"in": [], "out": []}
        before = torch.get_num_threads()
        try:
            for count in counts:
                torch.set_num_threads(count)
                for size in SIZES:
                    for way, (source, target) in _sides(place, size).items():
                        found[way] += [(size, _least(source, target, by)) for by in ways]
        finally:
            torch.set_num_threads(before)
        return {"copies": {"in": found["in"], "out": found["out"] or found["in"]}}


def _sides(device: torch.device, size: int) -> dict[str, tuple[Tensor, Tensor]]:
    host = torch.ones(size, dtype=torch.uint8)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        host = host.pin_memory()
    return {"in": (host, there), "out": (there, host)} if device.type == "cuda" else {"in": (host, there)}


def _least(source: Tensor, target: Tensor, way: Way) -> float:
    taken: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(taken) < ROUNDS or time.perf_counter() < until:
        taken.append(seconds_of(source, target, way))
    return min(taken)


if __name__ == "__main__":
    serve(CopiedLink)
