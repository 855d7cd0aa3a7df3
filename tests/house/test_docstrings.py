"""A function's docstring begins with a verb: `Return`, `Free`, `Start`; `True while ...` for a condition."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "djinn_jupyter"
NOT_VERBS = set(
    "The A An Its Their This That These Those One Two All Any Each Every Nobody Everybody Somebody "
    "What Who Whoever Whose Whether Where Which How Only Also And So As Of By With Without".split()
)


def without_a_verb(source: str) -> Iterator[str]:
    """Functions whose docstrings begin with no verb. A property is named by a noun, a magic's is help for its user."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_a_noun(node):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].rstrip(",:;.") in NOT_VERBS:
                yield node.name


def _is_a_noun(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.name.startswith("djinn_") or any("property" in ast.unparse(one) for one in node.decorator_list)


def test_functions_say_with_a_verb_what_they_do() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): [*without_a_verb(path.read_text())] for path in PACKAGE.rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_a_docstring_without_a_verb_is_found() -> None:
    functions = ('def f():\n    """The pages."""', 'def g():\n    """Free the pages."""')
    source = "\n".join([*functions, '@property\ndef h(self):\n    """The pages."""'])
    assert [*without_a_verb(source)] == ["f"]
