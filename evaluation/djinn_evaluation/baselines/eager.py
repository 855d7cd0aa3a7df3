"""PyTorch eager and plain Hugging Face: the reference of every comparison, a pause that holds its memory, and a model
that is streamed by hand.

Shapes: T positions of the prompt, V entries of the vocabulary."""

from __future__ import annotations

import base64
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.copies import ALIGNMENT, Copying, copier_for, views
from djinn_evaluation.baselines.weights import Timestamps, decoded
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import GIB


class Eager:
    """One model loaded by transformers, on the GPU where there is one."""

    model: Any

    def __init__(self) -> None:
        self.standing: list[tuple[Any, list[Tensor]]] = []  # cache and hidden state of each stop

    def load(self, **asked: Any) -> dict[str, Any]:
        """Load the model of the fields of weights.ModelAsked; one that does not fit on the GPU stays on the host."""
        wanted = weights.ModelAsked(**asked)
        self.model = wanted.read()
        nbytes = weights.size_of(self.model)
        self.device = weights.device_for(wanted.device, nbytes)
        self.model.to(self.device)
        layers = self.model.config.get_text_config().num_hidden_layers
        return {"layers": layers, "device": str(self.device), "weight_bytes": nbytes}

    @torch.inference_mode()
    def logits(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Return the tokens of a greedy `generate`, and its last fp32 logits [V] as base64 of their bytes."""
        generated, logits = self._generate(tokens, new)
        last = logits[-1][0].to(torch.float32).cpu().numpy()
        return generated | {"logits": base64.b64encode(last.tobytes()).decode()}

    def _generate(self, tokens: list[int], new: int) -> tuple[dict[str, Any], Any]:
        """Return new tokens and milliseconds of a greedy `generate`, and its logits."""
        prompt = torch.tensor([tokens], device=self.device)
        begun = time.perf_counter()
        made = weights.generated(self.model, prompt, new, return_dict_in_generate=True, output_logits=True)
        weights.settle(self.device)
        milliseconds = 1000 * (time.perf_counter() - begun)
        return {"tokens": made.sequences[0, len(tokens) :].tolist(), "milliseconds": milliseconds}, made.logits

    @torch.inference_mode()
    def reference(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Return the likeliest tokens by one `forward`, and tokens, digests and milliseconds of `generate`."""
        predicted, (generated, logits) = self.predicted(tokens), self._generate(tokens, new)
        digests = {"first": weights.digest(logits[0][0]), "digest": weights.digest(logits[-1][0])}
        return {**predicted, **generated, **digests}

    @torch.inference_mode()
    def stand(self, prompts: list[list[int]], layer: int) -> dict[str, Any]:
        """Stop each prompt after a layer by a hook that raises, and hold all tensors."""
        self.standing = []
        layers_run = []
        for tokens in prompts:
            layers_run.append(self._stand_one(tokens, layer))
        weights.settle(self.device)
        return {
            "layers_run_before_stop": max(layers_run),
            "tensor_bytes_held": self.held(),
            "weights_gb": weights.size_of(self.model) / GIB,
        }

    def _stand_one(self, tokens: list[int], layer: int) -> int:
        """Stop a prompt after a layer and hold its tensors; return how many layers ran."""
        prompt, cache = torch.tensor([tokens], device=self.device), DynamicCache(config=self.model.config)
        kept, count = self._counted(partial(self._stopped_after, layer, prompt, cache))
        self.standing.append((cache, kept))
        return count

    @torch.inference_mode()
    def fill(self, prompts: list[list[int]], layer: int, limit: int) -> dict[str, Any]:
        """Stop prompt after prompt until `limit` bytes are full; return how many, and why no more. Release all."""
        self.let_go()
        refusal, size = None, weights.size_of(self.model)
        with self._held_to(limit):
            for tokens in prompts:
                try:
                    self._stand_one(tokens, layer)
                except torch.OutOfMemoryError as error:
                    refusal = str(error).splitlines()[0]
                    break
                if (needed := size + self.held()) > limit:
                    self.standing.pop()
                    refusal = f"one more would take {needed} bytes, of {limit}"
                    break
        standing = len(self.standing)
        self.let_go()
        return {"standing": standing, "refusal": refusal}

    @contextmanager
    def _held_to(self, limit: int) -> Iterator[None]:
        """Hold a GPU's allocator to so many bytes within the block; on the CPU there is none to hold."""
        if self.device.type != "cuda":
            yield
            return
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def another(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Run request B to its end, and free its memory; zero tokens where it does not fit beside the held tensors."""
        try:
            made, seconds = weights.greedy(self.model, tokens, new, self.device)
        except torch.OutOfMemoryError:
            return {"request_b_tokens": 0, "request_b_latency_ms": None}
        finally:
            self._give_back()
        return {"request_b_tokens": len(made), "request_b_latency_ms": 1000 * seconds}

    def let_go(self) -> dict[str, Any]:
        """Drop what the stops hold."""
        self.standing.clear()
        self._give_back()
        return {}

    def free(self) -> dict[str, Any]:
        """Return the memory that the driver has free; None without a GPU."""
        on_gpu = self.device.type == "cuda"
        return {"gpu_free_during_pause_gb": torch.cuda.mem_get_info(self.device)[0] / GIB if on_gpu else None}

    def held(self) -> int:
        """Return the bytes of the tensors that the stops hold: keys and values, and hidden states."""
        layers = [layer for cache, _ in self.standing for layer in cache.layers]
        rows = [part for layer in layers for part in (layer.keys, layer.values) if isinstance(part, Tensor)]
        return sum(tensor.nbytes for tensor in (*rows, *(one for _, kept in self.standing for one in kept)))

    def _give_back(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def captured(self, tokens: list[int], layer: int) -> dict[str, Any]:
        """Return shape [1, T, D] and digest of a layer's output, as a plain hook sees it."""
        prompt = torch.tensor([tokens], device=self.device)
        (kept,) = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        return {"shape": list(kept.shape), "digest": weights.digest(kept)}

    @torch.inference_mode()
    def predicted(self, tokens: list[int]) -> dict[str, Any]:
        """Return the most likely token after each position of the prompt, by one `forward` [T, V]."""
        prompt = torch.tensor([tokens], device=self.device)
        return {"predicted": self.model(prompt, use_cache=False).logits[0].argmax(-1).tolist()}

    @torch.inference_mode()
    def resumed(self, tokens: list[int], layer: int, factor: float | None = None) -> dict[str, Any]:
        """Stop after a layer, and go on from its kept output, or from that scaled; return the same of that pass."""
        prompt = torch.tensor([tokens], device=self.device)
        (kept,) = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        hidden = kept if factor is None else kept * factor
        found: dict[str, Any] = self._from_layer(layer, hidden, lambda: self.predicted(tokens))
        return found

    @torch.inference_mode()
    def recompute(self, tokens: list[int]) -> dict[str, Any]:
        """Run the whole prompt again, to the logits of the next token."""
        prompt = torch.tensor([tokens], device=self.device)
        weights.settle(self.device)
        begun = time.perf_counter()
        logits = self._next(prompt)
        weights.settle(self.device)
        return {"milliseconds": 1000 * (time.perf_counter() - begun), "top": int(logits.argmax())}

    @torch.inference_mode()
    def offload(self, tokens: list[int], layer: int) -> dict[str, Any]:
        """Stop after a layer, offload its output; then, timed: bring it back and go on to the next logits."""
        prompt = torch.tensor([tokens], device=self.device)
        kept = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        away = torch.empty_like(kept[0], device="cpu", pin_memory=self.device.type == "cuda")
        away.copy_(kept.pop())
        weights.settle(self.device)
        begun = time.perf_counter()
        logits = self._from_layer(layer, away.to(self.device, copy=True), lambda: self._next(prompt))
        weights.settle(self.device)
        milliseconds = 1000 * (time.perf_counter() - begun)
        return {"milliseconds": milliseconds, "bytes": away.nbytes, "top": int(logits.argmax())}

    def _stopped_after(self, layer: int, prompt: Tensor, cache: Any) -> list[Tensor]:
        """Leave the pass after a layer by a hook that raises; return that layer's output as a list of one."""
        with weights.leaving_after(weights.layers_of(self.model)[layer]) as kept:
            self.model(prompt, past_key_values=cache, use_cache=True)
        return kept

    def _counted(self, work: Callable[[], list[Tensor]]) -> tuple[list[Tensor], int]:
        """Call `work`; return its result and the number of layers that ran."""
        run: list[Any] = []
        with weights.hooked(weights.layers_of(self.model), lambda module, inputs: run.append(module), before=True):
            return work(), len(run)

    def _from_layer(self, layer: int, hidden_1TD: Tensor, run: Callable[[], Any]) -> Any:
        """Call `run` with layers below `layer` passing their input on, and `layer` returning `hidden_1TD`."""
        passed: list[Any] = []
        for number, module in enumerate(weights.layers_of(self.model)[: layer + 1]):
            passed.append((module, module.forward))
            module.forward = _passing(module.forward, hidden_1TD if number == layer else None)
        try:
            return run()
        finally:
            for module, forward in passed:
                module.forward = forward

    def _next(self, prompt: Tensor) -> Tensor:
        """Return logits [1, V] of the last position alone, as Djinn does: those of all positions would cost more."""
        kept = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self.model.forward).parameters else {}
        cache = DynamicCache(config=self.model.config)
        logits: Tensor = self.model(prompt, use_cache=True, past_key_values=cache, **kept).logits[:, -1]
        return logits


def _passing(forward: Any, instead: Tensor | None) -> Any:
    """Return a layer's forward that computes nothing; like layers since transformers 5 it returns a bare tensor."""

    def pass_on(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden if instead is None else instead

    return pass_on


HOST_SHARE: Final = 9 / 10  # of the host's free memory, the most that is pinned
Mode = Literal["resident", "by_layer", "ahead", "computing"]
"""The layers' weights while a pass runs: all on the device; each copied when its turn comes, and waited for; each
copied while the layer before it is computed; or the slot's, whatever it holds, which computes wrong numbers in the
right time."""


class Beside(Timestamps):
    """Timestamps of `passes` with copying beside each: a token is there once its pass of copying is over too."""

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
    """One model loaded by transformers, with some layers on the host. Layers are counted among those."""

    _beside: Copying | None = None

    def sizes(self, **asked: Any) -> dict[str, Any]:
        """Return bytes of weights and layers, the device, and free memory there and on the host; load nothing."""
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
        return {"weight_bytes": weights.weight_bytes(config)}

    def draw(self, config: dict[str, Any], folder: str) -> dict[str, Any]:
        """Write a model of this configuration with random weights into an existing folder."""
        weights.save(config, Path(folder))
        return {}

    def load(self, **asked: Any) -> dict[str, Any]:
        """Read the model that the fields of weights.ModelAsked name; return its device and the bytes of all weights."""
        self.device = weights.device_for(asked.get("device"))
        self.model = weights.ModelAsked(**asked).read()
        self.model.generation_config.eos_token_id = None
        return {"device": str(self.device), "weight_bytes": weights.size_of(self.model)}

    def stream(self, layers: list[int] | None) -> dict[str, Any]:
        """Keep these layers (None: all) on the host; return the bytes that stream, and whether all would fit."""
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
        """Generate greedily; return what `decoded` does, its times since the epoch, and each copy of a layer."""
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
        """Generate beside copying; then one token more by itself, `alone_token` in `alone` seconds."""
        self._enter(mode)
        cache = DynamicCache(config=self.model.config)
        made = decoded(self.model, tokens, new, self.device, Beside(self._copying(), new), cache)
        token, seconds = self._one_more(made["tokens"][-1], cache)
        return made | {"alone_token": token, "alone": seconds}

    @torch.inference_mode()
    def _one_more(self, token: int, cache: Any) -> tuple[int, float]:
        """Run a pass over one token, copying beside it; return the next token and the seconds of both."""
        begun = time.perf_counter()
        self._copying().begin()
        row_11 = torch.tensor([[token]], device=self.device)
        found = int(self.model(row_11, past_key_values=cache, use_cache=True).logits[0, -1].argmax())
        self._copying().wait()
        return found, time.perf_counter() - begun

    def copy(self) -> dict[str, Any]:
        """Copy all streamed layers by each way; return the quickest's seconds, and each copy of a layer."""
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
    serve(Eager, ByHand)
