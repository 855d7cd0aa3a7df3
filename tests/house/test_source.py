"""The house rules on source: closures, docstrings, plain English, names of classes and in messages, former files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from djinn_jupyter.wire.texts import in_quotes
from tests.house.repository import nodes, parsed, text_files

Function = ast.FunctionDef | ast.AsyncFunctionDef


def found(rule: Callable[[ast.Module], Iterator[Any]], folders: tuple[str, ...] = ("djinn_jupyter",)) -> dict[str, Any]:
    """Return what breaks a rule, by the module."""
    told = {path: [*rule(tree)] for folder in folders for path, tree in parsed(folder).items()}
    return {path: those for path, those in told.items() if those}


# --- closures --------------------------------------------------------------------------------------------------------


def that_hold_themselves(module: ast.Module) -> Iterator[str]:
    """Functions within functions that call themselves by name, and thus through a closure: the collector of cycles
    would free their objects, long after their last use."""
    for outer in (node for node in nodes(module) if isinstance(node, Function)):
        for inner in ast.walk(outer):
            if isinstance(inner, Function) and inner is not outer and _names(inner, inner.name):
                yield f"{outer.name}.{inner.name}"


def _names(function: Function, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for part in function.body for node in ast.walk(part))


def test_no_function_holds_itself() -> None:
    assert found(that_hold_themselves) == {}
    source = (
        "def f():\n    def g(x):\n        return [g(y) for y in x]\n    def h(x):\n        return x\n    return g, h"
    )
    assert [*that_hold_themselves(ast.parse(source))] == ["f.g"]


# --- docstrings ------------------------------------------------------------------------------------------------------

NOT_VERBS = set(
    "The A An Its Their This That These Those One Two All Any Each Every Nobody Everybody Somebody "
    "What Who Whoever Whose Whether Where Which How Only Also And So As Of By With Without".split()
)
CLAUSES = set("What How Who Whoever Whose Whether Which Where When Why Whatever Nobody Somebody Everybody".split())
PRONOUNS = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever)\b", re.IGNORECASE)
STORIES = {"demo_training/templates.py"}  # sentences of the demo model's language


def _first_word(node: ast.AST) -> str:
    return ((ast.get_docstring(node) or "").split() or [""])[0].rstrip(",:;.")  # type: ignore[arg-type]


def without_a_verb(module: ast.Module) -> Iterator[str]:
    """Functions whose docstrings begin with no verb. A property is named by a noun, a magic's is help for its user."""
    for node in nodes(module):
        if isinstance(node, Function) and not _is_a_noun(node) and _first_word(node) in NOT_VERBS:
            yield node.name


def _is_a_noun(node: Function) -> bool:
    return node.name.startswith("djinn_") or any("property" in ast.unparse(one) for one in node.decorator_list)


def test_functions_say_with_a_verb_what_they_do() -> None:
    assert found(without_a_verb) == {}
    functions = ('def f():\n    """The pages."""', 'def g():\n    """Free the pages."""')
    source = "\n".join([*functions, '@property\ndef h(self):\n    """The pages."""'])
    assert [*without_a_verb(ast.parse(source))] == ["f"]


def clauses(module: ast.Module) -> Iterator[str]:
    """Yield the docstrings, of modules and classes too, that begin with a clause."""
    for node in nodes(module):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and _first_word(node) in CLAUSES:
            yield ast.get_docstring(node) or ""


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert found(clauses, ("djinn_jupyter", "evaluation", "examples", "docs", "demo_training")) == {}
    assert [*clauses(ast.parse('"""What is kept."""\nclass A:\n    """A page."""'))] == ["What is kept."]


def test_sentences_name_their_subject() -> None:
    others = ("tests/", "labextension/test/", ".ci/", *STORIES)
    ours = [(path, text) for path, text in text_files() if path.endswith((".py", ".ts", ".tsx", ".md"))]
    told = {path: PRONOUNS.findall(text) for path, text in ours if not path.startswith(others)}
    assert {path: words for path, words in told.items() if words} == {}
    assert PRONOUNS.findall("Pages that nobody holds") == ["nobody"]


# --- names -----------------------------------------------------------------------------------------------------------

A_VIEW = "a message, and the client's view of it"
ON_THE_WIRE = "a value of the engine, and its form on the wire"
TWO_SIDES = {
    **dict.fromkeys(("Paused", "Finished", "Snapshot", "Lens", "Effect"), A_VIEW),
    **dict.fromkeys(("Change", "History", "Override", "Watch"), ON_THE_WIRE),
    "Evaluate": "a request of ours, and the command of the Debug Adapter Protocol that becomes it",
}


def classes(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the paths in which each class is defined, by its name."""
    defined: dict[str, list[str]] = defaultdict(list)
    for path, module in modules.items():
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(path)
    return defined


def test_a_class_name_means_one_thing() -> None:
    """But for a thing on two sides of a border."""
    twice = {name: paths for name, paths in classes(parsed()).items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in TWO_SIDES} == {}
    sides = {name: sum(path.startswith("wire/") for path in twice.get(name, ())) for name in TWO_SIDES}
    assert sides == dict.fromkeys(TWO_SIDES, 1)
    assert {len(twice[name]) for name in TWO_SIDES} == {2}
    modules = {"one": ast.parse("class A: ..."), "two": ast.parse("class A: ...\nclass B: ...")}
    assert classes(modules)["A"] == ["one", "two"]


BY_REPR = re.compile(r"\b(?:[Ss]ession|[Cc]heckpoint|file) \{[^{}]*!r\}|\b(?:session|there)\.(?:name|label)!r\}")
CONVERTER: Final = "djinn_jupyter/files.py"
_FORMER: Final = re.compile(
    r"79ba2cba|ea93dcf|\b(?:earlier|former|older) (?:versions? of Djinn|formats?)\b|\bversions? (?:that|whose) "
    r"|older version's|\bof earlier versions|before there was one"
)


def test_no_name_of_a_session_or_file_is_written_by_repr() -> None:
    """`in_quotes` writes it, so that a name with a backslash is read as it was given."""
    ours = [(path, text) for path, text in text_files() if re.match(r"djinn_jupyter/.*\.py$", path)]
    assert {path: texts for path, text in ours if (texts := BY_REPR.findall(text))} == {}
    assert BY_REPR.search('f"Session {self.session.label!r} runs"')
    assert BY_REPR.search('f"{session.name!r}"')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paris", "'paris'"),
        ("C:\\trips", "'C:\\trips'"),
        ("it's", '"it\'s"'),
        ("a\nb", r"'a\nb'"),
        ("\u202eabc", r"'\u202eabc'"),
        ("日本", "'日本'"),
    ],
)
def test_a_name_is_quoted_as_it_is_shown(name: str, text: str) -> None:
    assert in_quotes(name) == text


def test_no_other_module_speaks_of_former_formats() -> None:
    """One module knows what former versions wrote, and it is short."""
    ours = {path: text for path, text in text_files() if re.match(r"(djinn_jupyter|labextension/src)/", path)}
    told = {path: _FORMER.findall(" ".join(text.split())) for path, text in ours.items() if path != CONVERTER}
    assert {path: words for path, words in told.items() if words} == {}
    assert len(ours[CONVERTER].splitlines()) <= 300
    assert _FORMER.search(ours[CONVERTER])
