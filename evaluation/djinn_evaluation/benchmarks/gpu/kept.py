"""Findings of a step in a file, a line each, so that a step whose time is over continues where it was."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu.steps import findings_of
from djinn_evaluation.benchmarks.setting import Setting

ENGINE: Final = ("djinn_jupyter/engine",)
EXPERIMENTS: Final = ("djinn_jupyter", "evaluation/djinn_evaluation")
TESTS: Final = ("djinn_jupyter", "tests")


class Kept:
    """Findings by their names. Lines that depend on other sources, versions or sizes than those of now do not count."""

    def __init__(self, path: Path, size: float, sources: tuple[str, ...] = ENGINE) -> None:
        self._path, self._under = path, f"{depends_on(sources)} {size:g}"
        entries = _whole(path.read_bytes()) if path.exists() else []
        self.found: dict[str, Any] = {one["name"]: one["value"] for one in entries if one["under"] == self._under}

    @classmethod
    def of(cls, step: str, setting: Setting, sources: tuple[str, ...] = ENGINE) -> Kept:
        """Return the findings of a step, beside its result. `sources` are the folders that they depend on."""
        return cls(findings_of(step, setting.results or setting.home), setting.factor, sources)

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        with self._path.open("a") as file:  # a line of its own, also after one that a kill has torn
            file.write("\n" + json.dumps({"under": self._under, "name": name, "value": value}) + "\n")


def _whole(lines: bytes) -> list[dict[str, Any]]:
    """Return the entries of the lines that were written to their end."""
    found = []
    for line in lines.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def depends_on(sources: tuple[str, ...]) -> str:
    """Return a digest of these sources and of the libraries' versions: after a fix, all is decided again."""
    found = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    for path in sorted(path for folder in sources for path in (CHECKOUT / folder).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
