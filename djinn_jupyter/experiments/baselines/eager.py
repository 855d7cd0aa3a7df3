"""PyTorch eager and plain Hugging Face: the reference of every comparison, and a pause that holds its memory.

Shapes: T positions of the prompt, V entries of the vocabulary.
"""

from __future__ import annotations

import base64
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_jupyter.amounts import GIB
from djinn_jupyter.experiments.baselines import weights
from djinn_jupyter.experiments.baselines.answering import serve


class Eager:
    """One model loaded by transformers, on the GPU where there is one."""

    model: Any
    tokens_1T: Tensor

    def load(self, **asked: Any) -> dict[str, Any]:
        """Load the model that the fields of weights.Asked name. A model that does not fit on the GPU stays on the host
        and is computed there."""
        wanted = weights.Asked(**asked)
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
        prompt = torch.tensor([tokens], device=self.device)
        predicted = self.model(prompt, use_cache=False).logits[0].argmax(-1).tolist()
        begun = time.perf_counter()
        made = self._generate(prompt, new)
        self._synchronise()
        milliseconds = 1000 * (time.perf_counter() - begun)
        return {
            "predicted": predicted,
            "tokens": made.sequences[0, len(tokens) :].tolist(),
            "first": weights.digest(made.logits[0][0]),
            "digest": weights.digest(made.logits[-1][0]),
            "milliseconds": milliseconds,
        }

    @torch.inference_mode()
    def pause(self, tokens: list[int], new: int, layer: int, seconds: float) -> dict[str, Any]:
        """Stop after a layer by a hook that raises, hold its tensors for `seconds`, and read the memory while request B
        runs: the same prompt and `new` tokens."""
        prompt, cache = torch.tensor([tokens], device=self.device), DynamicCache(config=self.model.config)
        before = self._held()
        kept, layers_run = self._counted(lambda: self._stopped_after(layer, prompt, cache))
        self._synchronise()
        held, deadline = [self._held(cache, kept)], time.monotonic() + seconds
        request_b = self._another(tokens, new)
        while time.monotonic() < deadline:
            held.append(self._held(cache, kept))
            time.sleep(min(0.1, seconds / 10))  # the pause only holds memory
        held.append(self._held(cache, kept))
        return {
            "vram_before_pause_gb": before / GIB,
            "vram_held_during_pause_gb": held[0] / GIB,
            "vram_variation_during_pause_gb": (max(held) - min(held)) / GIB,
            "gpu_free_during_pause_gb": self._free(),
            "process_gb": psutil.Process().memory_info().rss / GIB,
            "weights_gb": weights.size_of(self.model) / GIB,
            "layers_run_before_stop": layers_run,
            **request_b,
        }

    def _another(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Run request B to its end; zero tokens where it does not fit beside the held memory."""
        try:
            made, seconds = weights.greedy(self.model, tokens, new, self.device)
        except torch.OutOfMemoryError:
            return {"request_b_tokens": 0, "request_b_latency_ms": None}
        return {"request_b_tokens": len(made), "request_b_latency_ms": 1000 * seconds}

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
        logits = self._from_layer(prompt, layer, away.to(self.device, copy=True))
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

    def _from_layer(self, prompt: Tensor, layer: int, hidden_1TD: Tensor) -> Tensor:
        """Run the same forward, but the layers below `layer` return their input and `layer` returns `hidden_1TD`."""
        passed: list[Any] = []
        for number, module in enumerate(self._layers()[: layer + 1]):
            passed.append((module, module.forward))
            module.forward = _passing(module.forward, hidden_1TD if number == layer else None)
        try:
            return self._next(prompt)
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

    def _held(self, cache: Any = None, kept: Sequence[Tensor] = ()) -> int:
        """Return the bytes in use on the whole device by the driver; without a GPU the bytes that this pause holds,
        counted as Djinn's accounting does: weights, keys and values, the hidden state. The process's memory would add
        libraries to this side alone."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return int(total - free)
        layers = [] if cache is None else cache.layers
        rows = [part for layer in layers for part in (layer.keys, layer.values) if isinstance(part, Tensor)]
        return weights.size_of(self.model) + sum(tensor.nbytes for tensor in (*rows, *kept))

    def _free(self) -> float | None:
        return torch.cuda.mem_get_info(self.device)[0] / GIB if self.device.type == "cuda" else None

    def _synchronise(self) -> None:
        weights.settle(self.device)


def _passing(forward: Any, instead: Tensor | None) -> Any:
    """Return a layer's forward that computes nothing; like layers since transformers 5 it returns a bare tensor."""

    def pass_on(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden if instead is None else instead

    return pass_on


if __name__ == "__main__":
    eager = Eager()
    serve(
        {
            "load": eager.load,
            "logits": eager.logits,
            "reference": eager.reference,
            "pause": eager.pause,
            "recompute": eager.recompute,
            "offload": eager.offload,
        }
    )
