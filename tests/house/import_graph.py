"""The imports between modules of a package, type-only ones included, and the circles among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, frozenset[str]]


def import_graph(package: Path) -> dict[str, frozenset[str]]:
    """Return for each module of the package (a folder) the modules of it that it imports, wherever in the file."""
    root = next(one for one in package.parents if not (one / "__init__.py").is_file())
    names = {_name(path, root): path for path in sorted(package.rglob("*.py"))}
    return {name: frozenset(_imported(path, name, names)) - {name} for name, path in names.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Return the sets of modules of which each reaches each other one, the largest first."""
    reached = {name: _reachable(graph, name) for name in graph}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted((sorted(one) for one in found if len(one) > 1), key=len, reverse=True)


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = {start}
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def imported_in_functions(source: str) -> Iterator[tuple[str, str]]:
    """Yield for each import of our own modules in a function the function's name, and the module."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from ((function.name, alias.name) for alias in node.names if _is_ours(alias.name))
                elif isinstance(node, ast.ImportFrom) and (node.level or _is_ours(node.module or "")):
                    yield from ((function.name, f"{node.module or ''}.{alias.name}") for alias in node.names)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "djinn_jupyter"


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, name: str, names: Mapping[str, Path]) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield from (one for one in (full if full in names else base,) if one in names)


def _base(node: ast.ImportFrom, package: str) -> str:
    """Return the module that `from ... import` names, in full and without the package's own parents."""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - (node.level - 1)]
        return ".".join([*parents, *([node.module] if node.module else [])])
    return node.module or ""
