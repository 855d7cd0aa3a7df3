"""The folders of PEFT (adapter_config.json, adapter_model.safetensors) as the matrices of an adapter and their factors.
An option that is not computed here is refused by its name, and no pattern of a file is run as a regular expression.

Names and defaults as in PEFT 0.21 (`tuners/lora/config.py`, `utils/other.py::get_pattern_key`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.module_files.files import MOST_BYTES, MOST_DECLARATION, contents_of, object_in, pickle_among
from djinn_jupyter.module_files.safetensors_file import tensors_in
from djinn_jupyter.wire.adapters import MOST_ADAPTED, AdaptedModule
from djinn_jupyter.wire.arrays import Array

CONFIGURATION: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MATRIX: Final = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<half>[AB])\.weight")
HARMLESS: Final = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "runtime_config", "target_modules", "task_type", "use_rslora",
})  # fmt: skip
"""Options that are computed here, or that change no number of a trained adapter."""
INITIAL: Final = (True, False, None, "gaussian", "eva", "orthogonal")  # others train with changed base weights
REGULAR: Final = frozenset("\\*+?()[]{}|^$")
ADVICE: Final = {
    "use_dora": "merge it in PEFT (merge_and_unload) and load that model",
    "modules_to_save": "it replaces whole modules: merge it in PEFT (merge_and_unload) and load that model",
    "bias": "train it with bias='none', or merge it in PEFT (merge_and_unload) and load that model",
}
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """The contents of a folder. `digest` is of the bytes of its files."""

    path: Path
    modules: tuple[AdaptedModule, ...]
    digest: str


def read_adapter(folder: Path) -> AdapterFolder:
    """Return the adapter in a folder. Raises UsageError where there is none, or one that cannot be computed here."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}; an adapter is a folder with {CONFIGURATION} and {WEIGHTS}.")
    for name in (CONFIGURATION, WEIGHTS):
        if not (folder / name).is_file():
            pickle = pickle_among(folder)
            missing = f"{folder} has no {name}, so it is no adapter of PEFT."
            raise UsageError(missing if pickle is None else f"{missing} {pickle}")
    declared = contents_of(folder / CONFIGURATION, MOST_DECLARATION)
    config = object_in(folder / CONFIGURATION, declared)
    _require_computed(config, folder / CONFIGURATION)
    values = contents_of(folder / WEIGHTS, MOST_BYTES)
    modules = tuple(_modules(config, tensors_in(folder / WEIGHTS, values), folder))
    digest = hashlib.blake2b(declared, digest_size=16)
    digest.update(values)
    return AdapterFolder(path=folder, modules=modules, digest=digest.hexdigest())


def _require_computed(config: Config, where: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UsageError(f"{where} has peft_type {kind!r}, which is not computed here; there is LORA.")
    initial = config.get("init_lora_weights", True)
    if not any(initial is one or (isinstance(one, str) and initial == one) for one in INITIAL):
        raise UsageError(
            f"{where} has init_lora_weights {initial!r}, with which the base weights were changed in training; convert "
            "it in PEFT (save_pretrained with path_initial_model_for_weight_conversion)."
        )
    for name, value in config.items():
        if name in HARMLESS or not value or (name == "bias" and value == "none"):
            continue
        advice = f"; {ADVICE[name]}" if name in ADVICE else ""
        raise UsageError(f"{where} has {name} {_short(value)}, which is not computed here{advice}.")


def _modules(config: Config, tensors: Mapping[str, Array], folder: Path) -> Iterator[AdaptedModule]:
    """Yield each module with its two matrices."""
    found: dict[str, dict[str, Array]] = {}
    for name, array in tensors.items():
        matrix = MATRIX.fullmatch(name)
        if matrix is None:
            raise UsageError(f"{folder / WEIGHTS} has {name}, which is no LoRA matrix of a linear module.")
        found.setdefault(matrix["path"], {})[matrix["half"]] = array
    if not 0 < len(found) <= MOST_ADAPTED:
        raise UsageError(f"{folder / WEIGHTS} changes {len(found):,} modules; an adapter has 1 to {MOST_ADAPTED:,}.")
    for path, halves in found.items():
        if len(halves) < 2:
            there = next(iter(halves))
            raise UsageError(f"{folder / WEIGHTS} has lora_{there} of {path} and no lora_{'AB'.replace(there, '')}.")
        factor = _factor(config, path, halves["A"], folder / CONFIGURATION)
        yield AdaptedModule(path=path, factor=factor, down=halves["A"], up=halves["B"])


def _factor(config: Config, path: str, down: Array, where: Path) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) with rslora."""
    rank = _of_module(config, "r", "rank_pattern", path, where, 8)
    alpha = _of_module(config, "lora_alpha", "alpha_pattern", path, where, 8)
    if type(rank) is not int or rank < 1:
        raise UsageError(f"{where} has r {rank!r} for {path}; a rank is a whole number from 1 on.")
    if down.shape[:1] != (rank,):
        raise UsageError(f"{where} has r {rank} for {path}, and lora_A has shape {list(down.shape)}: one is another's.")
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _of_module(config: Config, name: str, patterns: str, path: str, where: Path, default: int) -> int | float:
    """Return the number of one module: that of the first pattern that its path ends in, else that of all."""
    by_pattern = config.get(patterns) or {}
    if not isinstance(by_pattern, dict):
        raise UsageError(f"{where} has {patterns} {_short(by_pattern)}; it has to be an object of numbers.")
    named = next((one for one in by_pattern if _names(one, path, where)), None)
    value = config.get(name, default) if named is None else by_pattern[named]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{where} has {name} {_short(value)} for {path}; it has to be a number.")
    return value


def _names(pattern: str, path: str, where: Path) -> bool:
    """Return whether a pattern names a module: its whole path after ^, or the end of it."""
    words = pattern.removeprefix("^")
    if REGULAR & set(words):
        raise UsageError(f"{where} has the pattern {_short(pattern)}; those of plain names are computed here.")
    return path == words or (words == pattern and path.endswith(f".{words}"))


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
