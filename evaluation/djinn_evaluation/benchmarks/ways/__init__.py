"""The three ways of use, typed with Djinn and in plain transformers with hooks: a newcomer's question, a researcher's
study, and a colleague's notebook that computes it again. What is typed is counted, and timed until all is found."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from djinn_evaluation.benchmarks.harness import Checks, Figure, Result, Setting, compared, take_turns

HERE: Final = Path(__file__).parent
SIDES: Final = {"djinn": "", "plain": "_plain"}  # with the end of the file's name
ROUNDS: Final = 3
HEAD: Final = r"layer (\d+), head (\d+) +(-?[\d.]+)"
FINDINGS: Final = {"newcomer": r"France is\|\s?(\w+)", "researcher": HEAD, "lab": HEAD}  # as either side prints them
STOP: Final = (sys.executable, "-m", "djinn_jupyter.cli.main", "stop", "--all", "--force", "--forget")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """The cells and the lines that are typed, without empty ones, and how many lines are of helper functions."""

    cells: int
    lines: int
    helper_lines: int


def cells_of(way: str, side: str) -> list[str]:
    """Return the cells that a side types."""
    return (HERE / f"{way}{SIDES[side]}.ipy").read_text().split("# %%\n")[1:]


def typed(cells: Sequence[str]) -> Typed:
    """Count what is typed."""
    helpers = 0
    for cell in cells:
        lines = TransformerManager().transform_cell(cell).splitlines()
        made = (one for one in ast.parse("\n".join(lines)).body if isinstance(one, ast.FunctionDef))
        helpers += sum(_filled(lines[one.lineno - 1 : one.end_lineno]) for one in made)
    return Typed(cells=len(cells), lines=_filled("".join(cells).splitlines()), helper_lines=helpers)


def _filled(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def run_ways(setting: Setting) -> Result:
    """The seconds from the start of a notebook's kernel to its end, in turn. Each side has a folder, in which the
    colleague finds the researcher's files. An engine runs before the colleague's notebook alone."""
    checks = Checks()
    try:
        figures = tuple(_figure(way, setting, checks) for way in FINDINGS)
    finally:
        stop_engines()
    counted = {way: {side: asdict(typed(cells_of(way, side))) for side in SIDES} for way in FINDINGS}
    return Result(benchmark="ways", settings={"typed": counted}, figures=figures, checks=checks.counts)


def _figure(way: str, setting: Setting, checks: Checks) -> Figure:
    found: dict[str, list[str]] = {}

    def play(side: str) -> float:
        if side == "djinn" and way != "lab":
            stop_engines()
        seconds, found[side] = played(way, side, setting.home / side)
        return seconds

    rounds = 1 if setting.quick else ROUNDS
    readings = take_turns({side: partial(play, side) for side in SIDES}, rounds=rounds, warm_up=0)
    checks.same(f"{way}: the same finding", found["djinn"], found["plain"])
    return compared(f"{way}: seconds to the end, of those of plain code", "djinn", "plain", readings, unit="s")


def stop_engines() -> None:
    subprocess.run(STOP, check=True, capture_output=True)


def played(way: str, side: str, folder: Path) -> tuple[float, list[str]]:
    """Run a side's cells in a kernel in this folder, and return the seconds with the first finding of each cell."""
    folder.mkdir(exist_ok=True)
    for file in HERE.glob("*_plain.ipy"):
        folder.joinpath(file.name).write_text(file.read_text())  # a colleague runs the researcher's
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells_of(way, side)])
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}})
    begun = perf_counter()
    client.execute(env=os.environ | {"JPY_SESSION_NAME": str(folder / f"{way}.ipynb")})
    seconds = perf_counter() - begun
    each = (re.search(FINDINGS[way], "".join(map(_text, cell.outputs))) for cell in notebook.cells)
    return seconds, [" ".join(one.groups()) for one in each if one is not None]


def _text(output: nbformat.NotebookNode) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))
