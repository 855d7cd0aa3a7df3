"""What stands in for our code in a test takes what the code itself takes: a parameter more fails here, by name.

Read are methods that a class of a test overrides, and functions that `monkeypatch.setattr` puts in the place of others.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT, nodes, parsed

OURS = ("djinn_jupyter", "djinn_evaluation")
FILES = sorted((ROOT / "tests").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Names:
    """The classes, modules and functions of ours that a file imports, and the functions that it defines."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, tuple[str, str | None]] = {}
        self.functions: dict[str, ast.FunctionDef | None] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
                self._imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                named = [alias for alias in node.names if alias.asname and alias.name.partition(".")[0] in OURS]
                self._imported |= {str(alias.asname): (alias.name, None) for alias in named}
            elif isinstance(node, ast.FunctionDef):  # of a name that is defined twice nothing is known
                self.functions[node.name] = None if node.name in self.functions else node

    def meaning(self, written: ast.expr) -> Any:
        """Return what an expression like `module.Class` is; None where it is nothing of ours."""
        if isinstance(written, ast.Attribute):
            return getattr(self.meaning(written.value), written.attr, None)
        module, name = self._imported.get(written.id, (None, None)) if isinstance(written, ast.Name) else (None, None)
        if module is None:
            return None
        found = importlib.import_module(module)
        if name is None:
            return found
        return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")

    def function(self, written: ast.expr) -> Function | None:
        if isinstance(written, ast.Name):
            return self.functions.get(written.id)
        return written if isinstance(written, ast.Lambda) else None


def doubles(file: Path) -> Iterator[tuple[str, Function, Callable[..., Any]]]:
    """Each double of a file: where it is, its definition, and the function whose place it takes."""
    tree = ast.parse(file.read_text())
    names = Names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found = overrides(node, names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            found = replacements(node, names)
        else:
            continue
        for definition, owner, name in found:
            real = inspect.getattr_static(owner, name, None)
            if inspect.isfunction(real) and real.__module__.partition(".")[0] in OURS:
                yield f"{file.relative_to(ROOT)}:{definition.lineno} {name}", definition, real


def overrides(made: ast.ClassDef, names: Names) -> Iterator[tuple[Function, Any, str]]:
    for base in filter(inspect.isclass, map(names.meaning, made.bases)):
        for part in made.body:
            if isinstance(part, ast.FunctionDef) and not part.decorator_list and not part.name.startswith("__"):
                yield part, base, part.name


def replacements(call: ast.Call, names: Names) -> Iterator[tuple[Function, Any, str]]:
    match call.args:
        case [owner, ast.Constant(value=str(name)), given, *_]:
            definition, replaced = names.function(given), names.meaning(owner)
            if definition is not None and replaced is not None:
                yield definition, replaced, name


@functools.cache
def keywords_given() -> dict[str, set[str]]:
    """Return the keywords that calls in our code give, by the name of what is called."""
    found: dict[str, set[str]] = {}
    trees = [tree for folder in ("djinn_jupyter", "evaluation") for tree in parsed(folder).values()]
    for node in (node for tree in trees for node in nodes(tree) if isinstance(node, ast.Call)):
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        if name is not None:
            found.setdefault(name, set()).update(one.arg for one in node.keywords if one.arg is not None)
    return found


def misfit(double: Function, real: Callable[..., Any], given: Collection[str]) -> str:
    """Return why a call that fits the function does not fit its double; "" where all do. `given`: the keywords that
    calls of it give, though it does not need them."""
    wanted = inspect.signature(real).parameters.values()
    places = [one for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = [one for one in wanted if one.kind is one.KEYWORD_ONLY]
    needed = [one.name for one in places if one.default is one.empty]
    takes = double.args
    taken = [one.arg for one in (*takes.posonlyargs, *takes.args)]
    if takes.vararg is None and takes.kwarg is None and len(taken) < len(needed):
        return f"takes {len(taken)} of {len(needed)} arguments"
    asked = [name for name in taken[: len(taken) - len(takes.defaults)] if name not in {one.name for one in named}]
    if len(asked) > len(places) and not any(one.kind is one.VAR_POSITIONAL for one in wanted):
        return f"wants {len(asked)} arguments of {len(places)}"
    known = {*taken, *(one.arg for one in takes.kwonlyargs)}
    wanted_by_name = (one.name for one in named if one.default is one.empty or one.name in given)
    missing = [name for name in wanted_by_name if name not in known]
    return f"does not take {', '.join(missing)}" if missing and takes.kwarg is None else ""


def test_a_double_takes_what_the_code_takes_in_whose_place_it_is() -> None:
    found = [one for file in FILES for one in doubles(file)]
    assert len(found) > 100
    assert [
        f"{where} {why}"
        for where, double, real in found
        if (why := misfit(double, real, keywords_given().get(real.__name__, ())))
    ] == []


@pytest.mark.parametrize(
    ("double", "why"),
    [
        ("lambda one, two, *, last, loud: 0", ""),
        ("lambda *given, **named: 0", ""),
        ("lambda one, **named: 0", ""),
        ("lambda one, two, last, loud: 0", ""),
        ("lambda last: 0", "takes 1 of 2 arguments"),
        ("lambda one, two, three, four, last, loud: 0", "wants 4 arguments of 3"),
        ("lambda one, two: 0", "does not take last, loud"),
        ("lambda one, two, last: 0", "does not take loud"),
    ],
)
def test_a_double_that_does_not_fit_is_found(double: str, why: str) -> None:
    def real(one: int, two: int, three: int = 3, *, last: int, loud: bool = False, quiet: bool = False) -> None: ...

    written = ast.parse(double, mode="eval").body
    assert isinstance(written, ast.Lambda)
    assert misfit(written, real, {"loud"}) == why
