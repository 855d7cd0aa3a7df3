"""Manual pinned offload: all decoder layers on the host, two slots on the device, the next layer copied while one is
computed. A thread copies on the CPU, a side stream on CUDA.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.answering import serve


@dataclass(slots=True, kw_only=True)
class Sample:
    """One copy of a layer: `begun` in seconds since the epoch, `stalled` the seconds that computing waited for it."""

    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    stalled: float = 0.0


class HostCopier:
    """Copies in one thread. A copy is over when its future, which has its sample, is done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.samples: list[Sample] = []

    def begin(self, sources: list[Tensor], targets: list[Tensor]) -> Future[Sample]:
        return self._thread.submit(self._copy, sources, targets)

    def wait(self, arrival: Future[Sample]) -> None:
        over, begun = arrival.done(), time.perf_counter()
        arrival.result().stalled += 0.0 if over else time.perf_counter() - begun

    def settle(self) -> None:
        self._thread.submit(lambda: None).result()

    def _copy(self, sources: list[Tensor], targets: list[Tensor]) -> Sample:
        sample = Sample(nbytes=sum(source.nbytes for source in sources), begun=time.time())
        begun = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
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

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._timed: list[LayerCopyEvents] = []
        self._opening = self._event(self._stream)
        self._opening.synchronize()
        self._opened = time.time()

    def begin(self, sources: list[Tensor], targets: list[Tensor]) -> LayerCopyEvents:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            begun = self._event(self._stream)
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
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


class Offloaded:
    """One model whose layers are copied through two slots. Layers count among those that stream."""

    model: Any

    def load(self, **asked: Any) -> dict[str, Any]:
        """Read the model that the fields of weights.ModelAsked name; return its device and the bytes of all weights."""
        wanted = weights.ModelAsked(**asked)
        self.device = weights.device_for(wanted.device)
        self.model = wanted.read()
        return {"device": str(self.device), "weight_bytes": weights.size_of(self.model)}

    def stream(self, layers: list[int] | None) -> dict[str, Any]:
        """Stream these layers, all of them for None; the others stay on the device. Return the bytes of each streamed
        layer."""
        every = list(weights.layers_of(self.model))
        streamed = every if layers is None else [every[number] for number in layers]
        self._hold(streamed)
        self.model.to(self.device)
        for number, layer in enumerate(streamed):
            layer.register_forward_pre_hook(lambda module, inputs, number=number: self._take(number))
        return {"layer_bytes": [sum(t.nbytes for t in held) for held in self._host]}

    def _hold(self, layers: list[Any]) -> None:
        """Keep the layers' weights on the host, pinned where a GPU reads them; allocate two slots on the device."""
        cuda = self.device.type == "cuda"
        self._parameters = [list(layer.parameters()) for layer in layers]
        shapes = {tuple((p.shape, p.dtype) for p in held) for held in self._parameters}
        if len(shapes) != 1:
            raise ValueError("the layers are not all of one shape, which two equal slots need")
        self._host = [[p.data.pin_memory() if cuda else p.data for p in held] for held in self._parameters]
        self._slots = [[torch.empty_like(t, device=self.device) for t in self._host[0]] for _ in range(2)]
        self._copier: Any = StreamCopier(self.device) if cuda else HostCopier()
        self._owner: list[int | None] = [None, None]
        self._arrivals: list[Any] = [None, None]
        for held, slot in zip(self._parameters, self._slots * len(layers), strict=False):
            for parameter, tensor in zip(held, slot, strict=True):
                parameter.data = tensor  # `_host` keeps the host's memory

    def _take(self, number: int) -> None:
        """Wait for the layer's weights and point its parameters at them; begin copying the next layer to the other
        slot."""
        if number not in self._owner:
            self._fetch(number, 0)
        slot = self._owner.index(number)
        self._copier.wait(self._arrivals[slot])
        for parameter, tensor in zip(self._parameters[number], self._slots[slot], strict=True):
            parameter.data = tensor
        self._fetch((number + 1) % len(self._parameters), 1 - slot)

    def _fetch(self, number: int, slot: int) -> None:
        self._owner[slot] = number
        self._arrivals[slot] = self._copier.begin(self._host[number], self._slots[slot])

    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily with a cache; return tokens, seconds, their beginning and end since the epoch, and a sample
        of each copy of a layer."""
        before, begun = len(self._copier.samples), time.time()
        found, seconds = weights.greedy(self.model, tokens, new, self.device)
        ended = time.time()
        self._copier.settle()
        return {"tokens": found, "seconds": seconds, "begun": begun, "ended": ended, "copies": self._made(before)}

    def copy(self) -> dict[str, Any]:
        """Copy all layers, one after the other, while nothing is computed; return a sample of each copy."""
        before = len(self._copier.samples)
        for number, held in enumerate(self._host):
            self._copier.begin(held, self._slots[number % 2])
        self._copier.settle()
        self._owner = [None, None]
        return {"copies": self._made(before)}

    def _made(self, before: int) -> list[tuple[Any, ...]]:
        """Return bytes, seconds, beginning and stall of each copy after the first `before`."""
        return [astuple(sample) for sample in self._copier.samples[before:]]


if __name__ == "__main__":
    offloaded = Offloaded()
    serve({"load": offloaded.load, "stream": offloaded.stream, "generate": offloaded.generate, "copy": offloaded.copy})
