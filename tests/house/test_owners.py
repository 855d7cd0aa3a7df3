"""A field has one owner: only the modules of the folder that declares it assign it. The core knows owners of sessions
by an opaque name."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from tests.census.folders import place
from tests.house.repository import nodes, parsed

SIDES = ("engine/", "modules/engine/", "parallel/", "remote/engine/")  # what runs in an engine's process
ALLOWED = {
    # fields of Python, torch, transformers and the hub, which have no verb for it
    ("engine/passes/epilogue.py", "config._attn_implementation_internal"),
    ("engine/passes/epilogue.py", "one._attn_implementation_internal"),
    ("engine/system/log.py", "logging._srcfile"),
    ("engine/system/log.py", "logging.logMultiprocessing"),
    ("engine/system/log.py", "logging.logProcesses"),
    ("engine/system/log.py", "logging.logThreads"),
    ("engine/memory/offload/mover.py", "error.__cause__"),
    ("engine/memory/offload/mover.py", "error.__context__"),
    ("engine/memory/offload/mover.py", "error.__traceback__"),
    ("engine/memory/weights/host_weights.py", "parameter.data"),
    ("engine/memory/weights/streamed.py", "layers[layer].forward"),
    ("engine/model/hooks/gates.py", "layer.forward"),
    ("engine/model/hooks/attention.py", "head.forward"),
    ("engine/model/loading/hub.py", "constants.HF_HUB_OFFLINE"),
    ("parallel/cutting.py", "matrix.forward"),
    ("parallel/group.py", "gloo._devices"),
    ("parallel/group.py", "gloo._timeout"),
    ("parallel/group.py", "options._timeout"),
    ("parallel/leader.py", "layer.forward"),
    ("engine/session/generation.py", "config.do_sample"),
    ("engine/session/generation.py", "config.temperature"),
    ("engine/process/selftest.py", "model.generation_config"),
}


def assigned_from_outside(module: ast.Module, folder: Iterable[ast.Module] = ()) -> Iterator[str]:
    """The assignments `x.y = ...`, also those in tuples and `+=`, where no class of the module or of the others in its
    folder declares `y`."""
    own = {name for one in (module, *folder) for name in _declared(one)}
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr not in own:
            yield ast.unparse(node)


@functools.cache
def _declared(tree: ast.Module) -> tuple[str, ...]:
    return tuple(_fields(tree))


def _fields(tree: ast.Module) -> Iterator[str]:
    """The fields of the module's classes: those in their bodies, and those that their methods assign to `self`."""
    for made in (node for node in nodes(tree) if isinstance(node, ast.ClassDef)):
        for node in made.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
        for node in ast.walk(made):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@functools.cache
def everywhere() -> list[tuple[str, str]]:
    folders: dict[str, dict[str, ast.Module]] = defaultdict(dict)
    for path, tree in parsed().items():
        if path.startswith(SIDES):
            folders[path.rpartition("/")[0]][path] = tree
    return [
        (path, target)
        for trees in folders.values()
        for path, tree in trees.items()
        for target in assigned_from_outside(tree, trees.values())
    ]


def found() -> list[tuple[str, str]]:
    return [one for one in everywhere() if one not in ALLOWED]


def test_a_field_is_assigned_in_the_folder_that_declares_it() -> None:
    assert found() == []


def test_what_is_allowed_is_there() -> None:
    assert [one for one in ALLOWED if one not in everywhere()] == []


def test_an_assignment_from_outside_is_found() -> None:
    source = """
class Own:
    number: int
    def f(self, session):
        self.held = session
        self.number = session.number = 1
        session.holder, other.number = None, 2
        session.residence.version += 1
        with open() as session.file: ...
        del self.held.frame
"""
    wanted = ["session.holder", "session.residence.version", "session.file", "self.held.frame"]
    module, beside = ast.parse(source), ast.parse("class Session:\n    holder: str\n    file: object")
    assert sorted(assigned_from_outside(module)) == sorted(wanted)
    assert sorted(assigned_from_outside(module, [beside])) == ["self.held.frame", "session.residence.version"]


# --- owners are opaque ------------------------------------------------------------------------------------------------


WORDS: Final = {"Person", "Quota", "AccessKey", "Hub", "Share"}
USERS_KNOW: Final = {"OverQuota", "PersonMemory"}  # an error that users know, and a message


def people_named(tree: ast.Module) -> Iterator[str]:
    """The identifiers of a module that have one of the words, also in the plural: those that it defines, uses, imports
    and passes arguments by."""
    for node in nodes(tree):
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
    told: dict[str, list[str]] = {}
    for path, tree in parsed().items():
        module = f"djinn_jupyter/{path.removesuffix('.py')}".replace("/", ".").removesuffix(".__init__")
        if place(module).startswith("engine/") and (names := {*people_named(tree)} - USERS_KNOW):
            told[module] = sorted(names)
    assert told == {}


def test_a_name_is_found_wherever_it_stands() -> None:
    source = """
from wire.quotas import Quota
class OfPersons:
    def f(self, at=None): return self.AccessKeys(Hub=1)
def shared(share, person): "Person"
"""
    assert sorted(people_named(ast.parse(source))) == ["AccessKeys", "Hub", "OfPersons", "Quota"]
