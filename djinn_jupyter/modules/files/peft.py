"""The folders of PEFT (adapter_config.json, adapter_model.safetensors) as the matrices of an adapter and their factors.
An option that is not computed here is refused by its name.

Names and defaults as in PEFT 0.21 (`tuners/lora/config.py`, `tuners/tuners_utils.py::check_target_module_exists`,
`utils/other.py::get_pattern_key`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.files import (
    MOST_BYTES,
    MOST_DECLARATION,
    FieldTable,
    contents_of,
    matched,
    object_in,
    pickle_among,
    short,
    tensors_in,
)
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import MOST_ADAPTED, AdaptedModule

CONFIGURATION: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MATRIX: Final = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<half>[AB])\.weight")
MERGE: Final = "merge it in PEFT (merge_and_unload) and load that model"
LORA: Final = FieldTable(
    computed=frozenset({
        "alpha_pattern", "exclude_modules", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha",
        "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
    }),
    harmless=frozenset({
        "auto_mapping", "base_model_name_or_path", "eva_config", "fan_in_fan_out", "inference_mode", "lora_dropout",
        "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
        "velora_config",
    }),
    refused={
        "alora_invocation_tokens": (None, ""),
        "arrow_config": (None, ""),
        "bias": ("none", f"train it with bias='none', or {MERGE}"),
        "corda_config": (None, ""),
        "ensure_weight_tying": (False, MERGE),
        "kasa_config": (None, ""),
        "layer_replication": (None, ""),
        "loftq_config": (None, ""),
        "lora_bias": (False, MERGE),
        "lora_ga_config": (None, ""),
        "megatron_config": (None, ""),
        "modules_to_save": (None, f"it replaces whole modules: {MERGE}"),
        "monteclora_config": (None, ""),
        "target_parameters": (None, MERGE),
        "trainable_token_indices": (None, MERGE),
        "use_bdlora": (None, ""),
        "use_dora": (False, MERGE),
        "use_qalora": (False, ""),
    },
)  # fmt: skip
INITIAL: Final = (True, False, None, "gaussian", "eva", "orthogonal")  # others train with changed base weights
REGULAR: Final = frozenset("\\*+?()[]{}|^$")
ALL_LINEAR: Final = "all-linear"
MOST: Final = 1e30  # of a rank or an alpha
HEADS: Final = ("lm_head", "embed_out")
NUMBERED: Final = r"\.(?P<index>\d+)\."
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """The contents of a folder. `digest` is the digest of its files' bytes. According to them it was trained on
    `model`; `unknown` are their unknown fields, without values."""

    path: Path
    modules: tuple[AdaptedModule, ...]
    digest: str
    model: str | None = None
    unknown: tuple[str, ...] = ()


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
    named = config.get("base_model_name_or_path")
    return AdapterFolder(
        path=folder,
        modules=modules,
        digest=digest.hexdigest(),
        model=named or None,
        unknown=tuple(LORA.unknown(config)),
    )


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
    LORA.require_heard(config, str(where))
    scaled, named = config.get("use_rslora"), config.get("base_model_name_or_path")
    if scaled is not None and not isinstance(scaled, bool):
        raise UsageError(f"{where} has use_rslora {short(scaled)}; it has to be true or false.")
    if named is not None and not isinstance(named, str):
        raise UsageError(f"{where} has base_model_name_or_path {short(named)}; it has to be a text.")


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
    chosen = targeted(config, list(found), folder / CONFIGURATION)
    ranks, alphas = (_of_modules(config, name, chosen, folder / CONFIGURATION) for name in ("rank", "alpha"))
    for path, halves in ((path, found[path]) for path in chosen):
        if len(halves) < 2:
            there = next(iter(halves))
            raise UsageError(f"{folder / WEIGHTS} has lora_{there} of {path} and no lora_{'AB'.replace(there, '')}.")
        factor = _factor(config, path, ranks[path], alphas[path], halves["A"], folder / CONFIGURATION)
        yield AdaptedModule(path=path, factor=factor, down=halves["A"], up=halves["B"])


def _factor(config: Config, path: str, rank: float, alpha: float, down: Array, where: Path) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) with rslora."""
    if type(rank) is not int or rank < 1:
        raise UsageError(f"{where} has r {short(rank)} for {path}; a rank is a whole number from 1 on.")
    if down.shape[:1] != (rank,):
        raise UsageError(
            f"{where} has r {short(rank)} for {path}, and lora_A has shape {list(down.shape)}: one is another's."
        )
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _of_modules(config: Config, kind: str, paths: Sequence[str], where: Path) -> dict[str, int | float]:
    """Return the rank or alpha of each module: from the first pattern that matches its end, else the common one."""
    name, patterns = ("r", "rank_pattern") if kind == "rank" else ("lora_alpha", "alpha_pattern")
    by_pattern = config.get(patterns) or {}
    if not isinstance(by_pattern, dict):
        raise UsageError(f"{where} has {patterns} {short(by_pattern)}; it has to be an object of numbers.")
    regular = {one: rf"(.*\.)?({one})" for one in by_pattern if REGULAR & set(one.removeprefix("^"))}
    found = matched(list(regular.values()), paths, f"{where} has {patterns} {short(list(regular))}")
    values = {}
    for path in paths:
        names = (one for one in by_pattern if (path in found[regular[one]] if one in regular else _names(one, path)))
        first = next(names, None)
        values[path] = _number(config.get(name, 8) if first is None else by_pattern[first], name, path, where)
    return values


def _number(value: Any, name: str, path: str, where: Path) -> int | float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -MOST < value < MOST:
        raise UsageError(f"{where} has {name} {short(value)} for {path}; it has to be a number.")
    found: int | float = value
    return found


def _names(pattern: str, path: str) -> bool:
    """Return whether a plain name is a module's: its whole path after ^, or the end of it."""
    words = pattern.removeprefix("^")
    return path == words or (words == pattern and path.endswith(f".{words}"))


def targeted(config: Config, paths: Sequence[str], where: Path) -> list[str]:
    """Return the modules of the weights' file that PEFT adapts by this config (`check_target_module_exists`). Raises
    UsageError where there are none, or PEFT rejects the config."""
    left_out = _excluded(config.get("exclude_modules"), paths, where)
    chosen = [path for path in _chosen(config, paths, where) if path not in left_out]
    if not chosen:
        named = short(config.get("target_modules"))
        raise UsageError(f"{where} has target_modules {named}, by which none of the modules in {WEIGHTS} is adapted.")
    return chosen


def _excluded(named: Any, paths: Sequence[str], where: Path) -> frozenset[str]:
    if not named:
        return frozenset()
    if isinstance(named, str):
        return frozenset(matched([named], paths, f"{where} has exclude_modules {short(named)}")[named])
    return frozenset(path for path in paths if _ends_in(named, path, "exclude_modules", where))


def _chosen(config: Config, paths: Sequence[str], where: Path) -> list[str]:
    named, layers = config.get("target_modules"), config.get("layers_to_transform")
    if isinstance(named, str) and (layers is not None or config.get("layers_pattern") is not None):
        raise UsageError(f"{where} has layers_to_transform or layers_pattern, which is only for a list target_modules.")
    if config.get("layers_pattern") and layers is None:
        raise UsageError(f"{where} has layers_pattern and no layers_to_transform, with which PEFT takes no adapter.")
    if named is None:
        raise UsageError(f"{where} has no target_modules, for which PEFT guesses by the model's type: name them there.")
    if isinstance(named, str) and named.lower() == ALL_LINEAR:
        return [path for path in paths if path.rpartition(".")[2] not in HEADS]
    if isinstance(named, str):
        return matched([named], paths, f"{where} has target_modules {short(named)}")[named]
    ending = [path for path in paths if _ends_in(named, path, "target_modules", where)]
    wanted = _layers(layers, where)
    return [path for path in ending if path in named or not wanted or _layer_of(config, path, where) in wanted]


def _ends_in(names: Any, path: str, field: str, where: Path) -> bool:
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError(f"{where} has {field} {short(names)}; it has to be a text or a list of texts.")
    return any(path == one or path.endswith(f".{one}") for one in names)


def _layers(named: Any, where: Path) -> list[int]:
    """Return the numbers of layers_to_transform; none where all layers are adapted."""
    layers = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(one) is int for one in layers):
        raise UsageError(f"{where} has layers_to_transform {short(named)}; it has to be a number or a list of numbers.")
    return layers


def _layer_of(config: Config, path: str, where: Path) -> int | None:
    """Return the number that PEFT takes for a module's layer, None where it finds none."""
    named = config.get("layers_pattern") or []
    patterns = [named] if isinstance(named, str) else named
    if not isinstance(patterns, list) or any(not isinstance(one, str) or REGULAR & set(one) for one in patterns):
        raise UsageError(f"{where} has layers_pattern {short(named)}; plain names are computed here.")
    lists = [rf"(?:^|.*?\.){re.escape(one)}" for one in patterns] or [r".*?\.[^.]*"]
    found = next((match for match in (re.match(one + NUMBERED, path) for one in lists) if match is not None), None)
    return None if found is None else int(found["index"])
