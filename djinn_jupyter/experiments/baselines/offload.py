"""Manual pinned offload: all decoder layers on the host, two slots on the device, the next layer copied while one is
computed. A thread copies on the CPU, a side stream on CUDA.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.experiments.baselines import weights
from djinn_jupyter.experiments.baselines.answering import serve


class HostCopier:
    """Copies in one thread. A copy is over when its future is done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.samples: list[tuple[int, float]] = []

    def begin(self, sources: list[Tensor], targets: list[Tensor]) -> Future[None]:
        return self._thread.submit(self._copy, sources, targets)

    def wait(self, arrival: Future[None]) -> None:
        arrival.result()

    def settle(self) -> None:
        self._thread.submit(lambda: None).result()

    def _copy(self, sources: list[Tensor], targets: list[Tensor]) -> None:
        begun = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        self.samples.append((sum(source.nbytes for source in sources), time.perf_counter() - begun))


class StreamCopier:
    """Copies on a side stream; each copy is timed between two events."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._timed: list[tuple[int, Any, Any]] = []

    def begin(self, sources: list[Tensor], targets: list[Tensor]) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            begun.record(self._stream)
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
            done.record(self._stream)
        self._timed.append((sum(source.nbytes for source in sources), begun, done))
        return done

    def wait(self, arrival: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(arrival)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    @property
    def samples(self) -> list[tuple[int, float]]:
        return [(nbytes, begun.elapsed_time(done) / 1e3) for nbytes, begun, done in self._timed]


class Offloaded:
    """One model whose layers are copied through two slots."""

    model: Any

    def load(self, **asked: Any) -> dict[str, Any]:
        """Load the model that the fields of weights.Asked name; return the bytes of all weights and of each layer."""
        wanted = weights.Asked(**asked)
        self.device = weights.device_for(wanted.device)
        self.model = wanted.read()
        nbytes = weights.size_of(self.model)
        layers = list(weights.layers_of(self.model))
        self._hold(layers)
        self.model.to(self.device)
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda module, inputs, number=number: self._take(number))
        return {"weight_bytes": nbytes, "layer_bytes": [sum(t.nbytes for t in held) for held in self._host]}

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
        """Generate greedily with a cache; return tokens, seconds, and bytes and seconds of each copy of a layer."""
        before = len(self._copier.samples)
        found, seconds = weights.greedy(self.model, tokens, new, self.device)
        self._copier.settle()
        return {"tokens": found, "seconds": seconds, "copies": self._copier.samples[before:]}

    def copy(self) -> dict[str, Any]:
        """Copy all layers, one after the other, while nothing is computed; return bytes and seconds of each copy."""
        before = len(self._copier.samples)
        for number, held in enumerate(self._host):
            self._copier.begin(held, self._slots[number % 2])
        self._copier.settle()
        self._owner = [None, None]
        return {"copies": self._copier.samples[before:]}


if __name__ == "__main__":
    offloaded = Offloaded()
    serve({"load": offloaded.load, "generate": offloaded.generate, "copy": offloaded.copy})
