"""The size of the house: lines, files, functions, circles, and the rooms that a prompt crosses, with the goals of
making it small. Counts of this checkout or, `--at COMMIT`, of another commit, the same on every machine."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from djinn_evaluation import CHECKOUT, EVALUATION
from djinn_evaluation.benchmarks import rooms
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_most
from djinn_evaluation.machine import git
from djinn_jupyter.wire import kinds
from tests.census.folders import is_core, place
from tests.house.import_graph import circles, import_graph

PACKAGE: Final = "djinn_jupyter"
ROUNDS: Final = 5
ROOMS_BEFORE: Final = 120  # at the commit before the first step
KB: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of Python. `header` is the number of lines up to the end of its imports."""

    path: Path
    lines: int
    header: int
    classes: int
    functions: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> Source:
        text = path.read_text()
        nodes = [*ast.walk(tree := ast.parse(text))]
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return cls(
            path=path,
            lines=len(text.splitlines()),
            header=max((_end(node) for node in tree.body if _imports(node)), default=0),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
            functions=tuple(_end(node) - node.lineno + 1 for node in functions),
        )

    def module(self, root: Path) -> str:
        return ".".join(self.path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def run_house(setting: Setting) -> Result:
    with _checked_out(setting.at, setting.home) as root:
        crossed = _crossed(root, setting.home, setting.rounds(ROUNDS))
        figures = (*sizes(root), *shapes(root), _rooms(crossed), *_documents(root))
    return Result(benchmark="house", settings={"at": setting.at, "rooms": crossed[-1]}, figures=figures)


@contextmanager
def _checked_out(commit: str | None, home: Path) -> Iterator[Path]:
    """Yield this checkout, or the files of a commit in a folder of their own."""
    if commit is None:
        yield CHECKOUT
        return
    place = home / "commit"
    git("worktree", "add", "--detach", str(place), commit)
    try:
        yield place
    finally:
        git("worktree", "remove", "--force", str(place))


def _crossed(root: Path, home: Path, rounds: int) -> list[list[str]]:
    """Return the rooms of each prompt, in an engine of the code in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, EVALUATION)))}
    command = [sys.executable, "-m", rooms.__name__, str(home), str(rounds)]
    done = subprocess.run(command, env=environment, cwd=home, stdout=subprocess.PIPE, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def sizes(root: Path) -> Iterator[Figure]:
    """Yield the lines and files of each part."""
    package = [*sources(root / PACKAGE)]
    core = [one for one in package if _is_of("core", one.module(root))]
    yield _figure("lines of the package", "lines", _lines(package), 80_000)
    yield _figure("files of the package", "files", len(package), 520)
    yield _figure("lines of the core", "lines", _lines(core), 52_000)
    yield _figure("files of the core", "files", len(core))
    yield _figure("lines of the evaluation", "lines", _lines(sources(root / "evaluation")), 19_000)
    yield _figure("lines of the tests", "lines", _lines(sources(root / "tests")), 72_000)
    yield _figure("share of headers", "of all lines", sum(one.header for one in package) / _lines(package), 0.1)


def shapes(root: Path) -> Iterator[Figure]:
    """Yield how the package is cut: functions, classes, circles, requests, and the parts of the loop."""
    package = [*sources(root / PACKAGE)]
    lengths = sorted(length for one in package for length in one.functions)
    yield _figure("functions", "functions", len(lengths))
    yield _figure("median of functions", "lines", statistics.median(lengths), 6)
    yield _figure("95 % of functions", "lines", lengths[len(lengths) * 95 // 100], 20)
    yield _figure("classes", "classes", sum(one.classes for one in package))
    yield _figure("circles of modules", "circles", len(circles(import_graph(root / PACKAGE))), 0)
    if root == CHECKOUT:
        yield _figure("requests", "requests", len(kinds.known().requests))
    parts = [one for one in package if one.path.name != "__init__.py" and _is_of("engine/loop", one.module(root))]
    yield _figure("modules of the loop", "files", len(parts), 8)


def _is_of(part: str, module: str) -> bool:
    """Return whether a module belongs to a folder, or to the core. One that no rule of today names is of the core."""
    try:
        return is_core(module) if part == "core" else place(module) == part
    except KeyError:
        return part == "core"


def sources(folder: Path) -> Iterator[Source]:
    yield from (Source.read(path) for path in sorted(folder.rglob("*.py")))


def _rooms(crossed: list[list[str]]) -> Figure:
    name = "rooms that a prompt crosses before the first layer"
    return Figure(name=name, unit="modules", value=Spread.of(map(len, crossed)), bar=at_most(ROOMS_BEFORE // 2))


def _documents(root: Path) -> Iterator[Figure]:
    yield _figure("docs/design.md", "KB", (root / "docs" / "design.md").stat().st_size / KB, 60)
    yield _figure("CHANGELOG.md", "KB", (root / "CHANGELOG.md").stat().st_size / KB, 12)


def _figure(name: str, unit: str, count: float, goal: float | None = None) -> Figure:
    return Figure(name=name, unit=unit, value=Spread.of([count]), bar=None if goal is None else at_most(goal))


def _lines(found: Iterable[Source]) -> int:
    return sum(one.lines for one in found)


def _imports(node: ast.stmt) -> bool:
    types_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.Import | ast.ImportFrom) or types_only


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno
