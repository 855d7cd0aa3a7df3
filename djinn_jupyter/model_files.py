"""Check the files of a local model without loading them: whether they are a model, complete, and which names they
contain. Executes nothing that it reads, and needs no torch. The kernel refuses by these checks before it starts an
engine, and the engine refuses files that arrived in another way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from djinn_jupyter.errors import ModelNotFound, ModelRefused

ADAPTER: Final = "adapter_config.json"
LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_SHOWN: Final = 60  # characters of a name that is too long
_NAMES: Final = ("model.safetensors", "pytorch_model.bin")
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf")
_MERGE: Final = "merge it with peft (merge_and_unload, then save_pretrained) and load the folder that this writes"


def path_called(name: str) -> Path:
    """Return the path that a model's name spells, which need not exist. Raises ModelNotFound for a name that no file
    system takes, and for the folder of an unknown user."""
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError) as error:
        why = (getattr(error, "strerror", None) or "there is no such user").lower()
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
        raise ModelNotFound(f"There is no model {shown}: {why}.") from None
    return path


def folder_called(model: str) -> Path | None:
    """Return the folder or the GGUF file that a model's name stands for; None for a name of the hub. Raises
    ModelNotFound or ModelRefused for a named folder or file that is missing or has no servable model."""
    path = path_called(model)
    if model and path.is_dir():
        _require_model(model, path)
        return path
    if path.suffix == ".gguf":
        _require_gguf(model, path)
        return path
    if path.is_file():
        raise ModelNotFound(f"{model} is a file; give the folder that it lies in, with its config.json.")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or model.endswith("/"):
        raise ModelNotFound(f"There is no folder {model}; give a folder, a hub name (owner/model) or demo.")
    if get_close_matches(model.lower(), ["demo"], cutoff=0.75):
        raise ModelNotFound(f"There is no model {model}; did you mean demo?")
    return None


def _require_model(model: str, folder: Path) -> None:
    configuration = folder / "config.json"
    if (folder / ADAPTER).is_file() and not configuration.is_file():
        raise ModelRefused(f"The folder {model} holds an adapter{_base_of(folder)} and no model of its own; {_MERGE}.")
    packed = next(iter(sorted(folder.glob("*.gguf"))), None)
    plain = [path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern)]
    if packed is not None and not plain:
        raise ModelRefused(f"The folder {model} has GGUF files; give one of them: {Path(model) / packed.name}.")
    if not configuration.is_file():
        raise ModelNotFound(f"The folder {model} holds no config.json; give a folder saved by save_pretrained.")
    if fault := fault_of(configuration):
        raise ModelRefused(f"The configuration of {model} cannot be read: {fault}.")


def _require_gguf(model: str, path: Path) -> None:
    """Raise ModelNotFound or ModelRefused unless this is a whole GGUF file."""
    if not path.is_file():
        raise ModelNotFound(
            f"There is no file {model}; download one of the hub first: hf download OWNER/MODEL FILE.gguf --local-dir ."
        )
    if _PART.search(path.name):
        raise ModelRefused(f"{model} is one part of several; join them with llama.cpp: llama-gguf-split --merge.")
    if fault := fault_of(path):
        raise ModelRefused(f"{model} cannot be read: {fault}.")


def _base_of(folder: Path) -> str:
    """Return the name of the base model of an adapter, after " of"; empty where the adapter does not name it."""
    if fault_of(folder / ADAPTER) is not None:
        return ""
    base = json.loads((folder / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    return f" of {base}" if isinstance(base, str) and base else ""


def fault_of(path: Path) -> str | None:
    """Return the fault of a file on disk and the remedy; None where none is seen."""
    if not path.is_file():
        what = "leads nowhere" if path.is_symlink() else "is missing"
        return f"{path.name} {what}; copy or download it again"
    with path.open("rb") as file:
        begin = file.read(len(LFS_POINTER))
    if begin == LFS_POINTER:
        return f"{path.name} is a Git LFS pointer and not the file itself; run `git lfs pull` in that folder"
    if not begin:
        return f"{path.name} is empty; copy or download it again"
    fault_of_kind = {".json": _fault_of_json, ".safetensors": _fault_of_safetensors, ".gguf": _fault_of_gguf}.get(
        path.suffix
    )
    return None if fault_of_kind is None else fault_of_kind(path)


def fault_in(folder: Path) -> str | None:
    """Return the first fault among the files of weights of a folder."""
    for index in _indexes(folder):
        if fault := fault_of(index):
            return fault
    return next((fault for path in weight_files(folder) if (fault := fault_of(path))), None)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that transformers reads, including missing ones that an index names."""
    for name in _NAMES:
        if (folder / name).is_file() or (folder / name).is_symlink():
            return (folder / name,)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return tuple(folder / shard for shard in sorted(set(_shards(index).values())))
    return ()


def weight_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the tensors in safetensors files; none where there are only others."""
    names: list[str] = []
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy") as file:
                names += file.keys()
    return tuple(names)


def _indexes(folder: Path) -> Iterator[Path]:
    return (path for name in _NAMES if (path := folder / f"{name}.index.json").is_file())


def _shards(index: Path) -> dict[str, str]:
    found: Any = json.loads(index.read_text(encoding="utf-8"))
    shards: dict[str, str] = found.get("weight_map", {}) if isinstance(found, dict) else {}
    return shards


def _fault_of_json(path: Path) -> str | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # not JSON, or not text
        return f"{path.name} is not JSON; copy or download it again"
    return None if isinstance(found, dict) else f"{path.name} holds a {type(found).__name__} where fields are due"


def _fault_of_gguf(path: Path) -> str | None:
    with path.open("rb") as file:
        return None if file.read(4) == b"GGUF" else f"{path.name} is no GGUF file; copy or download it again"


def _fault_of_safetensors(path: Path) -> str | None:
    try:
        with safe_open(path, framework="numpy"):
            return None
    except SafetensorError as error:
        why = str(error).partition(": ")[2]
        return f"{path.name} is cut off or damaged: {why}; copy or download it again"
