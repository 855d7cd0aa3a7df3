"""Distributions of strangers, as a test needs them: a package and its metadata in a folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter import extensions
from djinn_jupyter.wire import kinds

CACHES: Final = (extensions.installed, extensions.part, extensions._left_out, extensions._all_points, kinds.of_methods)


def add_stranger(
    folder: Path, name: str, package: str, modules: Mapping[str, str], *, method: str = "", magics: str = ""
) -> None:
    """Write distribution `name` 1.0 with the `modules` of its package, each with its text. It registers `method` (by
    default its own name) for the package, and the `magics`, `name = module` each in a line."""
    inside = folder / package
    inside.mkdir(parents=True, exist_ok=True)
    for module, text in {"__init__": "", **modules}.items():
        (inside / f"{module}.py").write_text(text)
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"[{extensions.METHODS}]\n{method or name} = {package}\n[{extensions.MAGICS}]\n{magics}\n"
    (about / "entry_points.txt").write_text(points)


def added_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yield what adds a distribution, as `add_stranger` does, to those that are installed here; then forget them."""
    monkeypatch.syspath_prepend(folder)
    loaded = set(sys.modules)
    forget()

    def added(*given: Any, **named: Any) -> None:
        add_stranger(folder, *given, **named)
        forget()

    yield added
    for name in set(sys.modules) - loaded:
        if name.partition(".")[0] in {path.name for path in folder.iterdir()}:
            del sys.modules[name]
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Have the methods that are installed looked for anew."""
    for cache in CACHES:
        cache.cache_clear()
