"""The core knows owners of sessions by an opaque name: persons, their keys and what each may have are of the remote
side."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.census.folders import place

ROOT: Final = Path(__file__).parents[2]
WORDS: Final = {"Person", "Quota", "AccessKey", "Hub", "Share"}
ALLOWED: Final = {"OverQuota", "PersonMemory"}  # an error that users know, and a message


def named(source: str) -> Iterator[str]:
    """The identifiers of a module that have one of the words, also in the plural: those that it defines, uses, imports
    and passes arguments by."""
    for node in ast.walk(ast.parse(source)):
        for name in _names(node):
            words = re.findall(r"[A-Z][a-z0-9]*", name.rpartition(".")[2])
            pairs = map("".join, pairwise(words))
            if WORDS & {word.removesuffix("s") for word in (*words, *pairs)}:
                yield name


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.keyword(arg=str(name)):
            return (name,)
    return ()


def test_the_core_of_the_engine_names_no_person_quota_key_hub_or_share() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "djinn_jupyter" / "engine").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if place(module).startswith("engine/") and (names := {*named(path.read_text())} - ALLOWED):
            found[module] = sorted(names)
    assert found == {}


def test_a_name_is_found_wherever_it_stands() -> None:
    source = """
from wire.quotas import Quota
class OfPersons:
    def f(self, at=None): return self.AccessKeys(Hub=1)
def shared(share, person): "Person"
"""
    assert sorted(named(source)) == ["AccessKeys", "Hub", "OfPersons", "Quota"]
