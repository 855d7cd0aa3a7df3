"""PyTorch eager and plain Hugging Face: the reference of every comparison, and a pause that holds its memory.

Shapes: T positions of the prompt, V entries of the vocabulary.
"""

from __future__ import annotations

import base64
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.answering import serve
from djinn_jupyter.units import GIB


class Eager:
    """One model loaded by transformers, on the GPU where there is one."""

    model: Any

    def __init__(self) -> None:
        self.standing: list[tuple[Any, list[Tensor]]] = []  # cache and hidden state of each stop

    def load(self, **asked: Any) -> dict[str, Any]:
        """Load the model that the fields of weights.ModelAsked name. A model that does not fit on the GPU stays on the
        host and is computed there."""
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
        prompt = torch.tensor([tokens], device=self.device)
        begun = time.perf_counter()
        made = self._generate(prompt, new)
        self._synchronise()
        last = made.logits[-1][0].to(torch.float32).cpu().numpy()
        return {
            "tokens": made.sequences[0, len(tokens) :].tolist(),
            "logits": base64.b64encode(last.tobytes()).decode(),
            "milliseconds": 1000 * (time.perf_counter() - begun),
        }

    def _generate(self, prompt: Tensor, new: int) -> Any:
        return self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )

    @torch.inference_mode()
    def reference(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Return the most likely token after each position of the prompt by one `forward` [T, V], and of a greedy
        `generate` its tokens, the digests of the logits of its first and last token, and its milliseconds."""
        prompt, predicted = torch.tensor([tokens], device=self.device), self.predicted(tokens)
        begun = time.perf_counter()
        made = self._generate(prompt, new)
        self._synchronise()
        milliseconds = 1000 * (time.perf_counter() - begun)
        return {
            **predicted,
            "tokens": made.sequences[0, len(tokens) :].tolist(),
            "first": weights.digest(made.logits[0][0]),
            "digest": weights.digest(made.logits[-1][0]),
            "milliseconds": milliseconds,
        }

    @torch.inference_mode()
    def stand(self, prompts: list[list[int]], layer: int) -> dict[str, Any]:
        """Stop each prompt after a layer by a hook that raises, and hold the tensors of all."""
        self.standing = []
        layers_run = []
        for tokens in prompts:
            layers_run.append(self._stand_one(tokens, layer))
        self._synchronise()
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
        """Stop prompt after prompt until weights and what the stops hold take more than `limit` bytes, or a GPU's
        allocator held to so many has no more; return how many stand, and why no other does. Then let all go."""
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
        """Run request B to its end, and give its memory back; zero tokens where it does not fit beside what is held."""
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
    def resumed(self, tokens: list[int], layer: int) -> dict[str, Any]:
        """Stop after a layer, and go on from its kept output; return the same of that pass."""
        prompt = torch.tensor([tokens], device=self.device)
        (kept,) = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        found: dict[str, Any] = self._from_layer(layer, kept, lambda: self.predicted(tokens))
        return found

    @torch.inference_mode()
    def steered(self, tokens: list[int], layer: int, factor: float) -> dict[str, Any]:
        """Scale a layer's output by a hook; return the same of that pass."""
        prompt = torch.tensor([tokens], device=self.device)
        (kept,) = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        found: dict[str, Any] = self._from_layer(layer, kept * factor, lambda: self.predicted(tokens))
        return found

    @torch.inference_mode()
    def recompute(self, tokens: list[int]) -> dict[str, Any]:
        """Run the whole prompt again, to the logits of the next token."""
        prompt = torch.tensor([tokens], device=self.device)
        self._synchronise()
        begun = time.perf_counter()
        logits = self._next(prompt)
        self._synchronise()
        return {"milliseconds": 1000 * (time.perf_counter() - begun), "top": int(logits.argmax())}

    @torch.inference_mode()
    def offload(self, tokens: list[int], layer: int) -> dict[str, Any]:
        """Stop after a layer, move its output to pinned host memory; then, timed: bring it back and run the layers
        above and the head, to the logits of the next token."""
        prompt = torch.tensor([tokens], device=self.device)
        kept = self._stopped_after(layer, prompt, DynamicCache(config=self.model.config))
        away = torch.empty_like(kept[0], device="cpu", pin_memory=self.device.type == "cuda")
        away.copy_(kept.pop())
        self._synchronise()
        begun = time.perf_counter()
        logits = self._from_layer(layer, away.to(self.device, copy=True), lambda: self._next(prompt))
        self._synchronise()
        milliseconds = 1000 * (time.perf_counter() - begun)
        return {"milliseconds": milliseconds, "bytes": away.nbytes, "top": int(logits.argmax())}

    def _stopped_after(self, layer: int, prompt: Tensor, cache: Any) -> list[Tensor]:
        """Leave the pass after a layer by a hook that raises; return that layer's output as a list of one."""
        with weights.leaving_after(self._layers()[layer]) as kept:
            self.model(prompt, past_key_values=cache, use_cache=True)
        return kept

    def _counted(self, work: Callable[[], list[Tensor]]) -> tuple[list[Tensor], int]:
        """Call `work`; return its result and the number of layers that ran."""
        run: list[Any] = []
        hooks = [layer.register_forward_pre_hook(lambda module, inputs: run.append(module)) for layer in self._layers()]
        try:
            return work(), len(run)
        finally:
            for hook in hooks:
                hook.remove()

    def _from_layer(self, layer: int, hidden_1TD: Tensor, run: Callable[[], Any]) -> Any:
        """Call `run` for the same forward, but the layers below `layer` return their input and `layer` returns
        `hidden_1TD`."""
        passed: list[Any] = []
        for number, module in enumerate(self._layers()[: layer + 1]):
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

    def _layers(self) -> Any:
        return weights.layers_of(self.model)

    def _synchronise(self) -> None:
        weights.settle(self.device)


def _passing(forward: Any, instead: Tensor | None) -> Any:
    """Return a layer's forward that computes nothing; like layers since transformers 5 it returns a bare tensor."""

    def pass_on(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden if instead is None else instead

    return pass_on


if __name__ == "__main__":
    eager = Eager()
    names = "load logits reference stand fill another free let_go captured predicted resumed steered recompute offload"
    serve({name: getattr(eager, name) for name in names.split()})
