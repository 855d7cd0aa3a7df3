"""Random weights for an architecture, saved to a folder: for the shapes of models whose weights cannot be had.

Drawing 13 billion numbers takes a processor minutes, reading 26 GB seconds. So the weights are cut from one block of
random numbers that no matrix's row fits into evenly: no two rows are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

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
