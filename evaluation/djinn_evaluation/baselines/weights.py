"""The model of a baseline: read by transformers, or drawn from the same seed as an engine's; and running it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from djinn_evaluation import digest as digests
from djinn_evaluation.baselines.sources import source_of
from djinn_jupyter.machine import device_of_environment

SEED = 0
HEADROOM = 9 / 10  # of what a GPU has free


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """The model that a baseline loads: `dtype` None is the model's own, `threads` None torch's choice, `device` None
    the best there is."""

    model: str
    dtype: str | None
    threads: int | None
    device: str | None = None
    random_weights: bool = False

    def read(self) -> Any:
        """Return the model in eval mode, on the host. It attends by the kernels that the engine allows."""
        torch.backends.cuda.enable_cudnn_sdp(False)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        source = source_of(self.model)
        found: Any = self._drawn(source) if self.random_weights else self._read(source)
        return found.eval().requires_grad_(False)

    def empty(self) -> Any:
        """Return the model on the meta device: shapes without weights, from its configuration alone."""
        with torch.device("meta"):
            return self._drawn(source_of(self.model))

    def _read(self, source: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(source, dtype=self._kind or "auto")

    def _drawn(self, source: str) -> Any:
        configuration = AutoConfig.from_pretrained(source)
        kind = self._kind or getattr(configuration, "dtype", None) or torch.float32
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return AutoModelForCausalLM.from_config(configuration, dtype=kind)

    @property
    def _kind(self) -> torch.dtype | None:
        return None if self.dtype is None else getattr(torch, self.dtype)


def size_of(model: Any) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def device_for(name: str | None, nbytes: int = 0) -> torch.device:
    """Return the device of that name, else that of DJINN_DEVICE, else the GPU where there is one; the host instead of a
    GPU that lacks room for `nbytes`. ValueError for a named GPU that is not there."""
    name = name or device_of_environment()
    if name is not None and torch.device(name).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no device {name}")
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and nbytes > HEADROOM * torch.cuda.mem_get_info(device)[0]:
        return torch.device("cpu")
    return device


def layers_of(model: Any) -> Any:
    """Return the list of the decoder layers."""
    count = model.config.get_text_config().num_hidden_layers
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)


class Left(Exception):
    """Raised by a hook to leave the forward pass after a layer."""


@contextmanager
def leaving_after(layer: Any) -> Iterator[list[Tensor]]:
    """Leave a forward pass within the block, and the block, once `layer` has run; append its output to the list."""
    kept: list[Tensor] = []

    def leave(module: Any, inputs: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)
        raise Left

    hook = layer.register_forward_hook(leave)
    try:
        yield kept
    except Left:
        pass
    finally:
        hook.remove()


@torch.inference_mode()
def greedy(
    model: Any,
    tokens: list[int],
    new: int,
    device: torch.device,
    streamer: BaseStreamer | None = None,
    cache: Any = None,
) -> tuple[list[int], float]:
    """Return exactly `new` tokens by `generate`, with a cache, and the seconds until they are on the host. `streamer`
    receives each token; `cache` is an empty one that is filled, else it is one of generate's own."""
    kept = {} if cache is None else {"past_key_values": cache}
    prompt = torch.tensor([tokens], device=device)
    begun = time.perf_counter()
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        streamer=streamer,
        **kept,
    )
    found = made[0, len(tokens) :].tolist()
    return found, time.perf_counter() - begun


def digest(logits: Tensor) -> str:
    """Return the digest of the bits of logits as fp32."""
    return digests.digest(logits.to(torch.float32).contiguous().cpu().numpy())


def settle(device: torch.device) -> None:
    """Wait until the device has finished all submitted work, so that a clock may be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
