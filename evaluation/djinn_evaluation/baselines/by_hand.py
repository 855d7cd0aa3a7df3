"""A model streamed by hand on the device itself: the reference for the logits of a model that does not fit there, and
the times that a ring is held against: computing alone, copying alone, one after the other, both at once, and each layer
copied while the one before it is computed, which is manual pinned offload.
"""

from __future__ import annotations

import time
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_evaluation.baselines import drawing, weights
from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.copies import ALIGNMENT, Copying, copier_for, views
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.baselines.eager import Eager
from djinn_jupyter.machine import main_memory

HOST_SHARE: Final = 9 / 10  # of the host's free memory, the most that is pinned
Mode = Literal["resident", "by_layer", "ahead", "computing"]
"""The layers' weights while a pass runs: all on the device; each copied when its turn comes, and waited for; each
copied while the layer before it is computed; or the slot's, whatever it holds, which computes wrong numbers in the
right time."""


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
    """One model loaded by transformers, of which some layers stay on the host. Layers are counted among those."""

    _beside: Copying | None = None

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

    def load(self, **asked: Any) -> dict[str, Any]:
        """Read the model that the fields of weights.ModelAsked name; return its device and the bytes of all weights."""
        self.device = weights.device_for(asked.get("device"))
        self.model = weights.ModelAsked(**asked).read()
        self.model.generation_config.eos_token_id = None
        return {"device": str(self.device), "weight_bytes": weights.size_of(self.model)}

    def stream(self, layers: list[int] | None) -> dict[str, Any]:
        """Keep these layers on the host, all of them for None, and put the rest on the device; return the bytes that
        stream in a pass, and whether all of the model fits on the device besides."""
        every = list(weights.layers_of(self.model))
        streamed = every if layers is None else [every[number] for number in layers]
        self._parameters = [list(layer.parameters()) for layer in streamed]
        self._host = self._on_host()
        self._raw = self._slot()
        self._put([[torch.empty(0, dtype=t.dtype) for t in held] for held in self._host])
        self.model.to(self.device)
        for number, layer in enumerate(streamed):
            layer.register_forward_pre_hook(lambda module, inputs, number=number: self._take(number))
        self._copier, self._beside = copier_for(self.device), None
        return {"streamed_bytes": self._streamed(), "fits": self._fits()}

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

    def _copying(self) -> Copying:
        if self._beside is None:
            self._beside = Copying(self._copier, self._host, [self._slot() for _ in range(2)])
        return self._beside

    def _streamed(self) -> int:
        return sum(tensor.nbytes for layer in self._host for tensor in layer)

    def _fits(self) -> bool:
        if self.device.type == "cpu":
            return True
        return self._streamed() < weights.HEADROOM * torch.cuda.mem_get_info(self.device)[0]

    def _put(self, tensors: list[list[Tensor]]) -> None:
        for number, layer in enumerate(tensors):
            self._point(number, layer)

    def _point(self, number: int, tensors: list[Tensor]) -> None:
        for parameter, tensor in zip(self._parameters[number], tensors, strict=True):
            parameter.data = tensor

    def _take(self, number: int) -> None:
        """Put a layer's weights where it computes with them, where they are copied layer by layer."""
        if self._mode == "by_layer":
            there = views(self._raw, self._host[number])
            self._copier.wait(self._copier.begin(self._host[number], there))
            weights.settle(self.device)
            self._point(number, there)
        elif self._mode == "ahead":
            self._point(number, self._copying().take(number))

    def _enter(self, mode: Mode) -> None:
        """Put the weights where they are in this mode. On a GPU all of them are copied there to be resident."""
        self._mode: Mode = mode
        if mode == "ahead":
            self._copying()
        elif mode == "resident":
            gpu = self.device.type != "cpu"
            self._put([[t.to(self.device) for t in layer] for layer in self._host] if gpu else self._host)
        else:
            self._put([views(self._raw, layer) for layer in self._host])
        weights.settle(self.device)

    def streamed_logits(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        """Return the result of `logits`, with the weights in this mode."""
        self._enter(mode)
        return self.logits(tokens, new) | {"device": str(self.device)}

    def generate(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        """Generate greedily with a cache; return the result of `decoded`, beginning and end since the epoch, and a
        sample of each copy of a layer."""
        self._enter(mode)
        before, begun = len(self._copier.samples), time.time()
        made = decoded(self.model, tokens, new, self.device, Timestamps())
        ended = time.time()
        self._copier.settle()
        return made | {"begun": begun, "ended": ended, "copies": self._made(before)}

    def _made(self, before: int) -> list[tuple[Any, ...]]:
        """Return bytes, seconds, beginning and stall of each copy after the first `before`."""
        return [astuple(sample) for sample in self._copier.samples[before:]]

    def generate_and_copy(self, tokens: list[int], new: int, mode: Mode) -> dict[str, Any]:
        """Generate with a pass of copying beside each pass, neither waiting for a layer of the other; then one token
        more by itself, `alone_token` in `alone` seconds."""
        self._enter(mode)
        cache = DynamicCache(config=self.model.config)
        made = decoded(self.model, tokens, new, self.device, Beside(self._copying(), new), cache)
        token, seconds = self._one_more(made["tokens"][-1], cache)
        return made | {"alone_token": token, "alone": seconds}

    @torch.inference_mode()
    def _one_more(self, token: int, cache: Any) -> tuple[int, float]:
        """Run a pass over one token after those in the cache, with a pass of copying beside it; return the next token,
        and the seconds until both are over."""
        begun = time.perf_counter()
        self._copying().begin()
        row_11 = torch.tensor([[token]], device=self.device)
        found = int(self.model(row_11, past_key_values=cache, use_cache=True).logits[0, -1].argmax())
        self._copying().wait()
        return found, time.perf_counter() - begun

    def copy(self) -> dict[str, Any]:
        """Copy all streamed layers while nothing is computed, once by each way there is; return the seconds of the
        quickest, and a sample of each copy of a layer."""
        copying, before = self._copying(), len(self._copier.samples)
        seconds = copying.copy()
        return {"seconds": seconds, "copies": self._made(before)}


def _pinned(tensor: Tensor) -> Tensor:
    """Return a copy in pinned memory of its own size; `pin_memory` rounds up to a power of two."""
    pinned = tensor.clone()
    runtime: Any = torch.cuda.cudart()
    refused = int(runtime.cudaHostRegister(pinned.data_ptr(), pinned.nbytes, 0))
    if refused:
        raise RuntimeError(f"{pinned.nbytes} bytes of host memory cannot be pinned: CUDA error {refused}")
    return pinned


if __name__ == "__main__":
    by_hand = ByHand()
    names = "sizes drawn_bytes draw load stream streamed_logits generate generate_and_copy copy"
    serve({name: getattr(by_hand, name) for name in names.split()})
