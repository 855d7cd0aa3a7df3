"""The model of a baseline, read or drawn from an engine's seed; running it; models with random weights in folders."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from djinn_evaluation.baselines import asking
from djinn_evaluation.baselines.asking import source_of
from djinn_jupyter.machine import device_of_environment

SEED = 0
HEADROOM = 9 / 10  # of what a GPU has free


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """The model that a baseline loads; None: the model's own dtype, torch's threads, the best device."""

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
    """Return that device, DJINN_DEVICE's, or the GPU; the host where a GPU lacks room. ValueError: no such GPU."""
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

    with suppress(Left), hooked([layer], leave):
        yield kept


@contextmanager
def hooked(modules: Iterable[Any], hook: Callable[..., Any], *, before: bool = False) -> Iterator[None]:
    """Call the hook after, or `before`, the forward of each of these modules within the block."""
    verb = "register_forward_pre_hook" if before else "register_forward_hook"
    held = [getattr(module, verb)(hook) for module in modules]
    try:
        yield
    finally:
        for one in held:
            one.remove()


@torch.inference_mode()
def greedy(
    model: Any,
    tokens: list[int],
    new: int,
    device: torch.device,
    streamer: BaseStreamer | None = None,
    cache: Any = None,
) -> tuple[list[int], float]:
    """Generate exactly `new` tokens; return them and the seconds. `cache` is an empty one that is filled."""
    kept = {} if cache is None else {"past_key_values": cache}
    prompt = torch.tensor([tokens], device=device)
    begun = time.perf_counter()
    made = generated(model, prompt, new, streamer=streamer, **kept)
    found = made[0, len(tokens) :].tolist()
    return found, time.perf_counter() - begun


def generated(model: Any, prompt: Tensor, new: int, **others: Any) -> Any:
    """Return what the model's own `generate` gives, greedy, of exactly `new` tokens."""
    lengths = {"max_new_tokens": new, "min_new_tokens": new}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **lengths, **others)


def digest(logits: Tensor) -> str:
    """Return the digest of the bits of logits as fp32."""
    return asking.digest(logits.to(torch.float32).contiguous().cpu().numpy())


def settle(device: torch.device) -> None:
    """Wait until the device has finished all submitted work, so that a clock may be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timestamps(BaseStreamer):  # type: ignore[misc,unused-ignore]
    """The times at which `generate` had each token; the first is the prompt's."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None: ...


def decoded(
    model: Any, tokens: list[int], new: int, device: torch.device, stamps: Timestamps, cache: Any = None
) -> dict[str, Any]:
    """Generate; return the new tokens, `seconds` of all, `decoding` from the first new token to the last."""
    made, seconds = greedy(model, tokens, new, device, stamps, cache)
    return {"seconds": seconds, "decoding": stamps.times[-1] - stamps.times[1], "tokens": made}


class Decoding:
    """A side with a whole model on one device, whatever keeps its weights elsewhere."""

    model: Any
    device: torch.device

    @torch.inference_mode()
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily with a cache; return tokens, seconds, and those from the first new token to the last."""
        return decoded(self.model, tokens, new, self.device, Timestamps())


# Drawing 13 billion numbers takes a processor minutes, reading 26 GB seconds. So the weights are cut from one block of
# random numbers that no matrix's row fits into evenly: no two rows are the same.
BLOCK: Final = (1 << 27) + 29  # numbers; odd, so that no row's length divides it
INDEX: Final = "model.safetensors.index.json"  # written last: with it the model is whole
SHARD_BYTES: Final = 4 << 30


def weight_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of all weights of a configuration, without making them."""
    return sum(tensor.nbytes for tensor in _empty(config).state_dict().values())


def save(config: dict[str, Any], place: Path) -> None:
    """Write a model of this configuration into an existing folder."""
    (place / "config.json").write_text(json.dumps(config))
    tensors = _empty(config).state_dict()
    cut = _CutWeights(dtype_of(config), tensors)
    shards = list(_shards(tensors))

    def put(number: int) -> None:
        made = {name: cut(name) for name in shards[number]}
        save_file(made, place / _name_of(number, len(shards)), metadata={"format": "pt"})

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(put, range(len(shards))))
    places = {name: _name_of(number, len(shards)) for number, names in enumerate(shards) for name in names}
    index = {"metadata": {"total_size": weight_bytes(config)}, "weight_map": places}
    (place / INDEX).write_text(json.dumps(index))


def _name_of(number: int, count: int) -> str:
    return f"model-{number + 1:05}-of-{count:05}.safetensors"


class _CutWeights:
    """Cuts weights from one block of normal numbers, each where the one before ends. Norms are ones."""

    def __init__(self, dtype: torch.dtype, tensors: dict[str, Tensor]) -> None:
        counts = {name: tensor.numel() for name, tensor in tensors.items()}
        size = min(BLOCK, sum(counts.values()) | 1)
        self._block = torch.randn(size, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(dtype)
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        ends = accumulate(counts.values())
        self._begins = {name: (end - count) % size for (name, count), end in zip(counts.items(), ends, strict=True)}

    def __call__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._block.dtype)
        count, size, begun = shape.numel(), self._block.numel(), self._begins[name]
        around = self._block if begun + count <= size else self._block.repeat(-(-(begun + count) // size))
        return around[begun : begun + count].view(shape).clone()


def _shards(tensors: dict[str, Tensor]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + tensor.nbytes > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    yield names


def _empty(config: dict[str, Any]) -> Any:
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        made = AutoConfig.for_model(config["model_type"], **fields)
        return AutoModelForCausalLM.from_config(made, dtype=dtype_of(config))


def dtype_of(config: dict[str, Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, config["dtype"])
    return found
