"""Findings of a step in a file, a line each, so that a step whose time is over continues where it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.worker import ROOT


class Kept:
    """Findings by their names. Lines that depend on other sources or versions than those of now do not count."""

    def __init__(self, path: Path) -> None:
        self._path, self._under = path, depends_on()
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        self.found: dict[str, Any] = {one["name"]: one["value"] for one in entries if one["under"] == self._under}

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        with self._path.open("a") as file:
            file.write(json.dumps({"under": self._under, "name": name, "value": value}) + "\n")


def depends_on() -> str:
    """Return a digest of the engine's sources and of the libraries' versions: after a fix, all is decided again."""
    found = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    for path in sorted((ROOT / "djinn_jupyter").glob("engine/**/*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
