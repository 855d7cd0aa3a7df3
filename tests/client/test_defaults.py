"""A function that passes an argument of its own on to a request, under the same name, has that request's default."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

import djinn_jupyter
from djinn_jupyter.wire import kinds

PACKAGE: Final = Path(djinn_jupyter.__file__).parent
OF_A_PERSON: Final = [
    *PACKAGE.glob("client/**/*.py"),
    *PACKAGE.glob("methods/*/api.py"),
    *PACKAGE.glob("methods/*/api/*.py"),
]
REQUESTS: Final = {kind.__name__: kind for kind in kinds.known().requests}


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    given, named = function.args, zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    found = dict(zip([one.arg for one in given.args][::-1], given.defaults[::-1], strict=False))
    return found | {one.arg: default for one, default in named if default is not None}


def _value(said: ast.expr) -> Any:
    """Return a default; None, which leaves it to the function, for one that is computed too."""
    return said.value if isinstance(said, ast.Constant) else None


def _passed_on(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield where a default is said, what it is, and the request's own."""
    functions = (one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.FunctionDef))
    for function in functions:
        said = _defaults(function)
        for call in (one for one in ast.walk(function) if isinstance(one, ast.Call)):
            kind = REQUESTS.get(ast.unparse(call.func).rpartition(".")[2])
            due = {} if kind is None else {field.name: field.default for field in msgspec.structs.fields(kind)}
            for one in call.keywords:
                if (
                    one.arg in said
                    and ast.unparse(one.value) == one.arg
                    and due.get(one.arg, msgspec.NODEFAULT) is not msgspec.NODEFAULT
                ):
                    yield f"{path.stem}.{function.name}({one.arg}=)", _value(said[one.arg]), due[one.arg]


def test_a_default_that_is_said_twice_is_the_same() -> None:
    found = [one for path in OF_A_PERSON for one in _passed_on(path)]
    assert len(found) > 40
    assert [name for name, said, due in found if said not in (None, due)] == []
