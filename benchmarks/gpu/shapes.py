"""The large models of the steps: a shipped architecture, made smaller by the size factor, saved with random weights.

Drawing 13 billion numbers takes a processor minutes, reading 26 GB seconds. So a model is saved once for all steps, cut
from one block of random numbers that no matrix's row fits into evenly: no two rows are the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.environments import NotRun

FOLDER: Final = Path(__file__).parents[1] / ".models"
THIRTEEN, SEVENTY = "Llama-2-13b-hf", "Llama-2-70b-hf"
LEAST_LAYERS: Final = 8  # some families go wrong from there on only
BLOCK: Final = (1 << 27) + 29  # numbers; odd, so that no row's length divides it
INDEX: Final = "model.safetensors.index.json"  # written last: with it the model is whole
SHARD_BYTES: Final = 4 << 30
SPARE: Final = 9 / 10  # of the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`factor` is that of the weights' bytes; each length shrinks by its cube root, none below its least."""

    factor: float

    def of(self, length: int, least: int) -> int:
        return max(least, round(length * self.factor ** (1 / 3)))


def shape(name: str, scale: Scale, layers: int | None = None) -> dict[str, Any]:
    """Return the configuration of a shipped architecture at this scale, with its ratios of heads and its kind."""
    package = "djinn_jupyter.experiments.configuration"
    found = json.loads((resources.files(package) / "architectures" / f"{name}.json").read_text())
    heads = scale.of(found["num_key_value_heads"], 1)
    group = found["num_attention_heads"] // found["num_key_value_heads"]
    width = found["hidden_size"] // found["num_attention_heads"] if scale.factor >= 1 else 16
    return found | {
        "num_key_value_heads": heads,
        "num_attention_heads": heads * group,
        "hidden_size": heads * group * width,
        "intermediate_size": scale.of(found["intermediate_size"], 64),
        "num_hidden_layers": layers or scale.of(found["num_hidden_layers"], LEAST_LAYERS),
        "vocab_size": scale.of(found["vocab_size"], 256),
    }


def weight_bytes(config: dict[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in _empty(config).state_dict().values())


def per_position(config: dict[str, Any]) -> int:
    """Return the bytes of keys and values that one position takes in all layers."""
    width = config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width * _dtype(config).itemsize


def saved(config: dict[str, Any]) -> Path:
    """Return the folder of a model of this configuration: of an earlier step, or new, and then the only one there is.
    Raises NotRun where the disk has no room."""
    place = FOLDER / f"{config['hidden_size']}x{config['num_hidden_layers']}"
    if (place / INDEX).exists() and json.loads((place / "config.json").read_text()) == config:
        return place
    delete()
    place.mkdir(parents=True)
    needed, free = weight_bytes(config), shutil.disk_usage(place).free
    if needed > SPARE * free:
        raise NotRun(f"the model takes {needed / 1e9:.0f} GB, and its disk has {free / 1e9:.0f} GB free")
    _write(config, place)
    return place


def disk() -> int:
    """Return the bytes that a model may take on the disk, in place of the saved one."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(FOLDER).free + sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors"))


def delete() -> None:
    """Delete the saved model, if there is one."""
    shutil.rmtree(FOLDER, ignore_errors=True)


def _write(config: dict[str, Any], place: Path) -> None:
    (place / "config.json").write_text(json.dumps(config))
    tensors = _empty(config).state_dict()
    cut = _Cut(_dtype(config), tensors)
    shards = list(_shards(tensors))

    def save(number: int) -> None:
        made = {name: cut(name) for name in shards[number]}
        save_file(made, place / _name_of(number, len(shards)), metadata={"format": "pt"})

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(save, range(len(shards))))
    places = {name: _name_of(number, len(shards)) for number, names in enumerate(shards) for name in names}
    index = {"metadata": {"total_size": weight_bytes(config)}, "weight_map": places}
    os.sync()  # or the writing would go on while a step measures
    (place / INDEX).write_text(json.dumps(index))


def _name_of(number: int, count: int) -> str:
    return f"model-{number + 1:05}-of-{count:05}.safetensors"


class _Cut:
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
        return AutoModelForCausalLM.from_config(made, dtype=_dtype(config))


def _dtype(config: dict[str, Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, config["dtype"])
    return found
