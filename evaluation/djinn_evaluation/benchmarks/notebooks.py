"""The time that each notebook takes, held against the one that its first cell gives."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from time import perf_counter
from typing import Final

import nbformat
from nbclient import NotebookClient

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_most

PROMISED: Final = re.compile(r"\*Less than (a minute|two minutes) with the demo model")
SECONDS: Final = {"a minute": 60.0, "two minutes": 120.0}


def run_notebooks(setting: Setting) -> Result:
    """From a copy of their folder, which they write to. With `quick` the first alone."""
    folder = shutil.copytree(CHECKOUT / "notebooks", setting.home / "notebooks")
    notebooks = sorted(folder.glob("*.ipynb"))[: 1 if setting.quick else None]
    return Result(benchmark="notebooks", settings={}, figures=tuple(map(_figure, notebooks)))


def _figure(path: Path) -> Figure:
    """Return the seconds from the start of a notebook's kernel to its end."""
    notebook = nbformat.read(path, as_version=4)
    promised = SECONDS[PROMISED.findall(notebook.cells[0].source)[0]]
    begun = perf_counter()
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(path.parent)}}).execute()
    seconds = perf_counter() - begun
    return Figure(name=path.name, unit="s", value=Spread.of([seconds]), bar=at_most(promised))
