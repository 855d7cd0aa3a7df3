"""One name for one thing: a class name stands once in the package, but for a thing on two sides of a border."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "djinn_jupyter"

A_VIEW = "a message, and the client's view of it"
ON_THE_WIRE = "a value of the engine, and its form on the wire"
TWO_SIDES = {
    "Paused": A_VIEW,
    "Finished": A_VIEW,
    "Snapshot": A_VIEW,
    "Lens": A_VIEW,
    "Effect": A_VIEW,
    "Change": ON_THE_WIRE,
    "History": ON_THE_WIRE,
    "Override": ON_THE_WIRE,
    "Watch": ON_THE_WIRE,
    "Evaluate": "a request of ours, and the command of the Debug Adapter Protocol that becomes it",
}


def classes(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the paths in which each class is defined, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return found


def test_a_class_name_means_one_thing() -> None:
    sources = ((path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))
    twice = {name: paths for name, paths in classes(sources).items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in TWO_SIDES} == {}
    assert {name: sum(path.startswith("wire/") for path in twice.get(name, ())) for name in TWO_SIDES} == dict.fromkeys(
        TWO_SIDES, 1
    )
    assert {len(twice[name]) for name in TWO_SIDES} == {2}


def test_a_name_with_two_meanings_is_found() -> None:
    assert classes([("one", "class A: ..."), ("two", "class A: ...\nclass B: ...")])["A"] == ["one", "two"]
