"""A model streamed by hand on the device itself, a layer at a time: the reference for the logits of a model that does
not fit there, and the times that a ring is held against: computing alone, copying alone, one after the other, both at
once.

On the CPU the slot keeps every weight's address modulo ALIGNMENT, for matrix products have other last bits at others.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_evaluation.baselines import drawing, weights
from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.baselines.eager import Eager
from djinn_jupyter.machine import main_memory

ALIGNMENT: Final = 512
HOST_SHARE: Final = 9 / 10  # of the host's free memory, the most that is pinned
Mode = Literal["resident", "by_layer", "computing"]
"""The layers' weights while a pass runs: all on the device; each copied when its turn comes, and waited for; or the
slot's, whatever it holds, which computes wrong numbers in the right time."""


class Copying:
    """A thread that copies all `layers` into two slots of raw memory, once for each pass that computes beside it. A
    GPU copies on a stream of its own."""

    def __init__(self, layers: list[list[Tensor]], slots: list[list[Tensor]]) -> None:
        self._layers, self._slots, self._pool = layers, slots, ThreadPoolExecutor(1)
        device = slots[0][0].device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._present: Future[list[float]] | None = None

    def begin(self) -> None:
        self._present = self._pool.submit(self.copy)

    def wait(self) -> None:
        assert self._present is not None
        self._present.result()

    def copy(self) -> list[float]:
        """Copy every layer once; return the seconds of each."""
        seconds = []
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for number, layer in enumerate(self._layers):
                begun = time.perf_counter()
                for source, raw in zip(layer, self._slots[number % 2], strict=False):
                    _view(raw, source).copy_(source, non_blocking=True)
                if self._stream is not None:
                    self._stream.synchronize()
                seconds.append(time.perf_counter() - begun)
        return seconds


class Beside(Timestamps):
    """Timestamps of passes that have a pass of copying beside them: a token is there once its pass of copying is over
    too. `passes` of copying are begun."""

    def __init__(self, copying: Copying, passes: int) -> None:
        super().__init__()
        self._copying, self._left = copying, passes

    def put(self, value: Tensor) -> None:
        if self.times:  # the first is the prompt's
            self._copying.wait()
        super().put(value)
        if self._left:
            self._left -= 1
            self._copying.begin()


class ByHand(Eager):
    """One model loaded by transformers, of which the layers `streaming` stay on the host. Their number is that of their
    place in the model."""

    def sizes(self, **asked: Any) -> dict[str, Any]:
        """Return the bytes of all weights and of each layer, the device, and the free memory of it and of the host;
        load nothing."""
        model = weights.ModelAsked(**asked).empty()
        self.device = weights.device_for(asked.get("device"))
        free = main_memory().available
        return {
            "weight_bytes": weights.size_of(model),
            "layer_bytes": [weights.size_of(layer) for layer in weights.layers_of(model)],
            "device": str(self.device),
            "host_free": free,
            "device_free": free if self.device.type == "cpu" else torch.cuda.mem_get_info(self.device)[0],
        }

    def drawn_bytes(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the bytes of all weights of a configuration."""
        return {"weight_bytes": drawing.weight_bytes(config)}

    def draw(self, config: dict[str, Any], folder: str) -> dict[str, Any]:
        """Write a model of this configuration with random weights into an existing folder."""
        drawing.save(config, Path(folder))
        return {}

    def load_streamed(self, streaming: list[int], **asked: Any) -> dict[str, Any]:
        """Load the model that the fields of weights.ModelAsked name; return the bytes that stream in a pass, and
        whether all of the model fits on the device besides."""
        self.device = weights.device_for(asked.get("device"))
        self.model = weights.ModelAsked(**asked).read()
        self.model.generation_config.eos_token_id = None
        layers = [weights.layers_of(self.model)[number] for number in streaming]
        self._parameters = [list(layer.parameters()) for layer in layers]
        self._host = self._on_host()
        self._raw = self._slot()
        self._put([[torch.empty(0, dtype=t.dtype) for t in held] for held in self._host])
        self.model.to(self.device)
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda module, inputs, number=number: self._take(number))
        self._copying: Copying | None = None
        return {"streamed_bytes": self._streamed(), "device": str(self.device), "fits": self._fits()}

    def _on_host(self) -> list[list[Tensor]]:
        """Return the weights that stream, pinned where a GPU reads them and the host has room."""
        held = [[parameter.data for parameter in layer] for layer in self._parameters]
        needed = sum(tensor.nbytes for layer in held for tensor in layer)
        if self.device.type != "cuda" or needed > HOST_SHARE * main_memory().available:
            return held
        return [[_pinned(tensor) for tensor in layer] for layer in held]

    def _slot(self) -> list[Tensor]:
        """Return raw memory on the device for each weight of a layer, large enough for any layer's."""
        count = max(map(len, self._host), default=0)
        most = [max(layer[place].nbytes for layer in self._host if place < len(layer)) for place in range(count)]
        return [torch.empty(nbytes + 2 * ALIGNMENT, dtype=torch.uint8, device=self.device) for nbytes in most]

    def _views(self, number: int) -> list[Tensor]:
        """Return the slot's memory as the weights of a layer."""
        return [_view(raw, tensor) for raw, tensor in zip(self._raw, self._host[number], strict=False)]

    def _streamed(self) -> int:
        return sum(tensor.nbytes for layer in self._host for tensor in layer)

    def _fits(self) -> bool:
        if self.device.type == "cpu":
            return True
        return self._streamed() < weights.HEADROOM * torch.cuda.mem_get_info(self.device)[0]

    def _put(self, tensors: list[list[Tensor]]) -> None:
        for held, layer in zip(self._parameters, tensors, strict=True):
            for parameter, tensor in zip(held, layer, strict=True):
                parameter.data = tensor

    def _take(self, number: int) -> None:
        """Copy a layer's weights to the slot and wait for them, where they come layer by layer."""
        if self._mode != "by_layer":
            return
        views = self._views(number)
        for source, target in zip(self._host[number], views, strict=True):
            target.copy_(source)
        weights.settle(self.device)
        for parameter, view in zip(self._parameters[number], views, strict=True):
            parameter.data = view

    def _enter(self, mode: Mode) -> None:
        """Put the weights where they are in this mode. On a GPU all of them are copied there to be resident."""
        self._mode: Mode = mode
        if mode == "resident":
            gpu = self.device.type != "cpu"
            self._put([[t.to(self.device) for t in layer] for layer in self._host] if gpu else self._host)
        else:
            self._put([self._views(number) for number in range(len(self._host))])
        weights.settle(self.device)

    def streamed_logits(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        """Return the result of `logits`, with the weights in this mode."""
        self._enter(mode)
        return self.logits(tokens, new) | {"device": str(self.device)}

    def generate(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        self._enter(mode)
        return decoded(self.model, tokens, new, self.device, Timestamps())

    def generate_and_copy(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        """Generate with a pass of copying beside each pass, neither waiting for a layer of the other; then one token
        more by itself, `alone_token` in `alone` seconds."""
        self._enter(mode)
        cache = DynamicCache(config=self.model.config)
        made = decoded(self.model, tokens, new, self.device, Beside(self._copier(), new), cache)
        token, seconds = self._one_more(made["tokens"][-1], cache)
        return made | {"alone_token": token, "alone": seconds}

    @torch.inference_mode()
    def _one_more(self, token: int, cache: Any) -> tuple[int, float]:
        """Run a pass over one token after those in the cache, with a pass of copying beside it; return the next token,
        and the seconds until both are over."""
        begun = time.perf_counter()
        self._copier().begin()
        row_11 = torch.tensor([[token]], device=self.device)
        found = int(self.model(row_11, past_key_values=cache, use_cache=True).logits[0, -1].argmax())
        self._copier().wait()
        return found, time.perf_counter() - begun

    def copy(self) -> dict[str, Any]:
        """Copy all streamed layers while nothing is computed; return the seconds of all and the bytes a second of the
        fastest."""
        seconds = self._copier().copy()
        sizes = [sum(tensor.nbytes for tensor in layer) for layer in self._host]
        fastest = max(nbytes / each for nbytes, each in zip(sizes, seconds, strict=True))
        return {"seconds": sum(seconds), "fastest": fastest}

    def _copier(self) -> Copying:
        if self._copying is None:
            self._copying = Copying(self._host, [self._slot() for _ in range(2)])
        return self._copying


def _pinned(tensor: Tensor) -> Tensor:
    """Return a copy in pinned memory of its own size; `pin_memory` rounds up to a power of two."""
    pinned = tensor.clone()
    runtime: Any = torch.cuda.cudart()
    refused = int(runtime.cudaHostRegister(pinned.data_ptr(), pinned.nbytes, 0))
    if refused:
        raise RuntimeError(f"{pinned.nbytes} bytes of host memory cannot be pinned: CUDA error {refused}")
    return pinned


def _view(raw: Tensor, like: Tensor) -> Tensor:
    """Return the part of `raw` that is as a weight is, at the same address modulo ALIGNMENT on the CPU."""
    phase = like.data_ptr() % ALIGNMENT if raw.device.type == "cpu" else 0
    begin = (phase - raw.data_ptr()) % ALIGNMENT
    return raw[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


if __name__ == "__main__":
    by_hand = ByHand()
    names = "sizes drawn_bytes draw load_streamed streamed_logits generate generate_and_copy copy"
    serve({name: getattr(by_hand, name) for name in names.split()})
