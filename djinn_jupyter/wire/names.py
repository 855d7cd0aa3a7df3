"""The shown name of a session: a notebook's path by its stem, with its folder where that would fit several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.texts import shown, unshown

NOTEBOOK = ".ipynb"


def label(name: str) -> str:
    """Return a session's name as it is shown: of a notebook's path its stem, another name unchanged. Characters that a
    terminal would obey are spelled out."""
    return shown(PurePosixPath(name).stem if name.endswith(NOTEBOOK) else name)


def notebook_shown(path: str) -> str:
    """Return a notebook's path as it is shown: its name, with the extension, behind its folder."""
    return shown(str(PurePosixPath(*PurePosixPath(path).parts[-2:])))


def told_apart(names: Iterable[str]) -> dict[str, str]:
    """Return names as they are shown side by side: by their labels; names with equal labels with as many of their
    folders as it takes (`ada/01_quickstart`)."""
    every = tuple(dict.fromkeys(names))
    labels = {name: label(name) for name in every}
    folders = 0
    while len(alike := _alike(labels)) and folders <= max(map(_depth, alike)):
        folders += 1
        labels |= {name: spelled_with(name, folders) for name in alike}
    return labels


def _alike(labels: dict[str, str]) -> list[str]:
    counts = Counter(labels.values())
    return [name for name, text in labels.items() if counts[text] > 1]


def _depth(name: str) -> int:
    return len(PurePosixPath(name).parts)


def spelled_with(name: str, folders: int) -> str:
    """Return the label behind so many of the path's last folders. A name that is not a notebook's stays as it is."""
    if not name.endswith(NOTEBOOK):
        return label(name)
    parents = PurePosixPath(name).parent.parts[-folders:]
    return shown(str(PurePosixPath(*parents, label(name))))


def require_showable(name: str, what: str) -> None:
    """Raise UsageError where a terminal or a log would obey a part of the name instead of showing it."""
    strange = unshown(name)
    if strange is not None:
        raise UsageError(f"{what} cannot hold {strange!r}, which is obeyed and not shown; choose another.")
