"""How the name of a session is shown: a notebook's path by its stem, and in full where that would fit several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

NOTEBOOK = ".ipynb"


def label(name: str) -> str:
    """A session's name as it is shown: a notebook's path by its stem, another name as it is."""
    return PurePosixPath(name).stem if name.endswith(NOTEBOOK) else name


def told_apart(names: Iterable[str]) -> dict[str, str]:
    """Names as they are shown side by side: by their labels, and in full those whose label others have too."""
    every = tuple(names)
    counts = Counter(map(label, every))
    return {name: label(name) if counts[label(name)] == 1 else name for name in every}
