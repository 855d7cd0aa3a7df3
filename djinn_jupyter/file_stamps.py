"""The files of a model as they were when it was loaded: size, time and inode of each, and of those that were not there.
Needs no torch: the engine compares before it computes, a kernel before it attaches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Stamp = tuple[int, int, int]
Stamps = Mapping[str, Stamp | None]
"""By path: bytes, time of the last write in nanoseconds, inode; None where there was no file."""

_THERE: Final = ("*.safetensors", "pytorch_model*.bin", "*.index.json", "*.model", "*.py")
_COULD_COME: Final = (
    "adapter_config.json",
    "adapter_model.bin",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def stamp_of(path: str | Path) -> Stamp | None:
    """Return the stamp of the file that a path leads to; None where it leads to none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def stamps_in(folder: Path) -> dict[str, Stamp | None]:
    """Return the stamps of what a load of the folder reads, and of what it would read if it were there; for a snapshot
    in the hub's cache also those of the names that lead to it."""
    there = [path.name for pattern in _THERE for path in folder.glob(pattern)]
    paths = [folder / name for name in sorted({*there, *_COULD_COME})]
    if folder.parent.name == "snapshots":
        refs = sorted(path for path in (folder.parents[1] / "refs").rglob("*") if _leads_to(path, folder.name))
        paths += refs
    return {str(path): stamp_of(path) for path in paths}


def first_change(stamps: Stamps) -> str | None:
    """Return in words what happened to the first file that is not as it was; None where all are."""
    for path, was in stamps.items():
        if (now := stamp_of(path)) != was:
            return f"{Path(path).name} {_happened(was, now)}"
    return None


def _happened(was: Stamp | None, now: Stamp | None) -> str:
    if now is None or was is None:
        return "is not there any more" if now is None else "is new"
    if now[0] < was[0]:
        return f"was cut short: it has {now[0]:,} bytes and had {was[0]:,}"
    return "was written to" if now[2] == was[2] else "was replaced by another file"


def _leads_to(path: Path, commit: str) -> bool:
    try:
        return path.is_file() and path.read_text().strip() == commit
    except (OSError, ValueError):
        return False
