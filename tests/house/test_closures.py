"""No function holds itself: its objects would be freed by the collector of cycles, long after their last use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "djinn_jupyter"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def that_hold_themselves(source: str) -> Iterator[str]:
    """Functions within functions that call themselves by name, and thus through a closure."""
    for outer in ast.walk(ast.parse(source)):
        if isinstance(outer, Function):
            for inner in ast.walk(outer):
                if isinstance(inner, Function) and inner is not outer and _names(inner, inner.name):
                    yield f"{outer.name}.{inner.name}"


def _names(function: Function, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for part in function.body for node in ast.walk(part))


def test_no_function_holds_itself() -> None:
    found = {path.name: list(that_hold_themselves(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_a_function_that_holds_itself_is_found() -> None:
    source = (
        "def f():\n    def g(x):\n        return [g(y) for y in x]\n    def h(x):\n        return x\n    return g, h"
    )
    assert list(that_hold_themselves(source)) == ["f.g"]
