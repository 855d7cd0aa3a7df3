"""The steps' large models and their engines: a shipped architecture, scaled, with random weights, saved once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import djinn_jupyter as dj
from djinn_evaluation import EVALUATION
from djinn_evaluation.baselines.weights import INDEX, dtype_of, save, weight_bytes
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.harness import Setting
from djinn_jupyter.api.engine import RemoteEngine

FOLDER: Final = EVALUATION / ".models"
THIRTEEN, SEVENTY = "Llama-2-13b-hf", "Llama-2-70b-hf"
LEAST_LAYERS: Final = 8  # some families go wrong from there on only
SPARE: Final = 9 / 10  # of the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`factor` applies to the weights' bytes; each length shrinks by its cube root, but not below its minimum."""

    factor: float

    def of(self, length: int, least: int) -> int:
        return max(least, round(length * self.factor ** (1 / 3)))


def shape(name: str, scale: Scale, layers: int | None = None) -> dict[str, Any]:
    """Return the configuration of a shipped architecture at this scale, with its ratios of heads and its kind."""
    package = "djinn_evaluation.configuration"
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


def per_position(config: dict[str, Any]) -> int:
    """Return the bytes of keys and values that one position takes in all layers."""
    width = config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width * dtype_of(config).itemsize


def saved(config: dict[str, Any]) -> Path:
    """Return the folder of this model, an earlier step's or new and then the only one. NotRun: the disk is full."""
    place = FOLDER / f"{config['hidden_size']}x{config['num_hidden_layers']}"
    if (place / INDEX).exists() and json.loads((place / "config.json").read_text()) == config:
        return place
    delete()
    place.mkdir(parents=True)
    needed, free = weight_bytes(config), shutil.disk_usage(place).free
    if needed > SPARE * free:
        raise NotRun(f"the model takes {needed / 1e9:.0f} GB, and its disk has {free / 1e9:.0f} GB free")
    save(config, place)
    os.sync()  # or the writing would go on while a step measures
    return place


def disk() -> int:
    """Return the bytes that a model may take on the disk, in place of the saved one."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(FOLDER).free + sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors"))


def delete() -> None:
    """Delete the saved model, if there is one."""
    shutil.rmtree(FOLDER, ignore_errors=True)


TINY_PAGE = 16  # positions; a small session would not fill a page of the usual size


@contextmanager
def serving(folder: Path, setting: Setting, **options: Any) -> Iterator[RemoteEngine]:
    """Start the engine of a saved model with nothing else on it; end it, its sessions too, with the block."""
    page = {"page_positions": TINY_PAGE} if setting.quick else {}
    with ExitStack() as stack:
        engine = dj.load(folder, threads=setting.threads, **page, **options)
        stack.callback(engine.stop, force=True, forget=True)
        yield engine


def scale_of(setting: Setting) -> Scale:
    return Scale(factor=setting.factor)
