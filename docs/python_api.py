"""Writes the reference of the Python API from the code: `write_reference.py` calls it.

Public is what `dj.__all__` names, and every class of the client that a public member returns or has as an attribute.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from types import FunctionType, GenericAlias, UnionType
from typing import Any

import msgspec

import djinn_jupyter as dj
from djinn_jupyter import errors
from djinn_jupyter.api import edits, stops
from djinn_jupyter.methods.datasets.api import activations
from djinn_jupyter.verbs import Verb
from djinn_jupyter.wire import replies

LEAST_WIDTH = 110
SUPPORTS = {
    "__len__": "`len()`",
    "__getitem__": "`[...]`",
    "__iter__": "iteration",
    "__array__": "`numpy.asarray()`",
    "__enter__": "`with`",
}
ABOUT = """`import djinn_jupyter as dj`. Values are numpy arrays; `[positions, features]` says what their axes count.
Amounts of memory are bytes, times seconds, losses nats. `...` for a default stands for a function that does nothing. In
the examples `engine` is `dj.load("demo")` and `session` a new session of it.
"""
MADE_BY_USERS = {activations.Activations}
MAKING = ("__init__", "__post_init__")
OF_THE_CLIENT = {  # called by its other modules
    *("channel", "sibling", "arrived", "send", "row", "spelled", "compared_values"),
    *("check", "require_fit", "require_recipe", "found_at", "notes_on", "ending", "named", "reproduced_by"),
    *("in_file", "from_file", "computed_by"),
}
Member = tuple[str, Any]


def python_api(written: str) -> str:
    """Return the page: functions, edits, classes, errors, types of arguments, and the messages that verbs return."""
    functions, kinds = public_functions(), public_classes()
    constructors = [name for name in edits.__all__ if name in functions]
    parts = [
        f"# Python API\n\n{written}\n{ABOUT}",
        "## Functions\n",
        *(_function(f"dj.{name}", each) for name, each in functions.items() if name not in constructors),
        "## Edits\n",
        "For `session.edit`, `session.steer` and `dj.sweep`; x is the value at the site.\n",
        *(_function(f"dj.{name}", functions[name]) for name in constructors),
        *(_class(kind) for kind in kinds),
        "## Errors\n",
        "In `djinn_jupyter.errors`; `dj.DjinnError`, `dj.BatchEnded` and the two interrupts are in `dj` as well.\n",
        f"```\n{_tree()}\n```\n",
        "## Types of arguments\n",
        "| type | is |\n|---|---|",
        *(f"| `{name}` | `{_spell(hint).replace(' | ', ' or ')}` |" for name, hint in sorted(aliases().items())),
        "\n## Messages\n",
        "Values of these types are as they crossed the wire; their fields are in [wire.md](wire.md).\n",
        ", ".join(f"[{kind.__name__}](wire.md#{kind.__name__.lower()})" for kind in messages()) + "\n",
    ]
    return "\n".join(parts)


def public_functions() -> dict[str, Callable[..., Any]]:
    return {name: each for name in dj.__all__ if inspect.isfunction(each := getattr(dj, name))}


@functools.cache
def public_classes() -> tuple[type, ...]:
    """Return the classes that `dj` names and, after them, those of the client that their members lead to."""
    found = [each for name in dj.__all__ if inspect.isclass(each := getattr(dj, name))]
    for kind in found:  # grows while it is read
        found += dict.fromkeys(one for one in _named_by(kind) if _is_ours(one) and one not in found)
    return tuple(found)


def messages() -> tuple[type, ...]:
    """Return the structs of the wire that public members return or have."""
    named = [one for kind in public_classes() for one in _named_by(kind)]
    named += [one for each in public_functions().values() for one in _classes_in(*_returned(each))]
    structs = {one for one in named if issubclass(one, msgspec.Struct) and _of_ours(one)} - {*public_classes()}
    return tuple(sorted(structs, key=lambda one: one.__name__))


def aliases() -> dict[str, Any]:
    """Return the names of types that signatures use and that are no classes."""
    members = [member for kind in public_classes() for _, member in public_members(kind)]
    found: dict[str, Any] = {}
    for function in (*public_functions().values(), *map(_as_function, members)):
        scope = _scope(function)
        for hint in function.__annotations__.values():
            for name in re.findall(r"[\w.]+", _spell(hint)):
                meant = scope.get(name)
                if isinstance(meant, UnionType | GenericAlias) or typing.get_origin(meant) is not None:
                    found[name] = meant
    return found


def public_members(kind: type) -> list[Member]:
    """Return the methods and properties that a user may call, own ones and those of bases of ours, in their order."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("djinn_jupyter"):
            continue
        for name, member in vars(base).items():
            member = getattr(base, name) if isinstance(member, Verb) else member
            if not name.startswith("_") and name not in OF_THE_CLIENT and _is_called(member):
                found.setdefault(name, member)
    return list(found.items())


def attributes(kind: type) -> list[str]:
    """Return the names of an instance's values: the fields of a dataclass, else those that its constructor sets;
    of a run's result also those of its reply."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    of = getattr(replies, kind.__name__) if issubclass(kind, stops.Generated) else kind
    found: dict[str, None] = dict.fromkeys(getattr(of, "__struct_fields__", ()))
    each = [vars(base).get(name) for base in kind.__mro__ if _of_ours(base) for name in MAKING]
    for making in filter(inspect.isfunction, each):
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(making)))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found[node.attr] = None
    return [name for name in found if not name.startswith("_")]


def _of_ours(kind: type) -> bool:
    return kind.__module__.startswith("djinn_jupyter")


def _is_ours(kind: type) -> bool:
    of_a_method = re.fullmatch(r"djinn_jupyter\.methods\.\w+\.api(\.\w+)?", kind.__module__)
    ours = of_a_method or kind.__module__.startswith(
        tuple(f"djinn_jupyter.{one}." for one in ("api", "link", "modules"))
    )
    return bool(ours) and not getattr(kind, "_is_protocol", False)


def _is_called(member: Any) -> bool:
    wrapped = isinstance(member, property | classmethod | staticmethod | functools.cached_property)
    return wrapped or inspect.isfunction(member)


def _named_by(kind: type) -> Iterator[type]:
    """Yield the classes that a class's members return and that its attributes are declared as."""
    for _, member in public_members(kind):
        yield from _classes_in(*_returned(_as_function(member)))
    for name in ("__getitem__", "__iter__"):
        if inspect.isfunction(special := getattr(kind, name, None)):
            yield from _classes_in(*_returned(special))
    if dataclasses.is_dataclass(kind):
        scope = vars(sys.modules[kind.__module__])
        yield from (one for field in dataclasses.fields(kind) for one in _classes_in(str(field.type), scope))
        return
    for making in filter(inspect.isfunction, (vars(kind).get(name) for name in MAKING)):
        yield from _made_in(making)
    if issubclass(kind, msgspec.Struct):
        hints = " ".join(map(str, vars(kind).get("__annotations__", {}).values()))
        yield from _classes_in(hints, vars(sys.modules[kind.__module__]))


def _made_in(making: FunctionType) -> Iterator[type]:
    """Yield the classes of the attributes that a constructor declares or makes, and of its `reply`."""
    scope = _scope(making)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(making)))):
        if isinstance(node, ast.AnnAssign) and _is_public(node.target):
            yield from _classes_in(ast.unparse(node.annotation), scope)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and any(map(_is_public, node.targets)):
            yield from _classes_in(ast.unparse(node.value.func), scope)
    if "reply" in making.__annotations__:
        yield from _classes_in(str(making.__annotations__["reply"]), scope)


def _is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not target.attr.startswith("_")


def _classes_in(hint: str, scope: dict[str, Any]) -> Iterator[type]:
    for name in re.findall(r"[A-Za-z_][\w.]*", hint):
        first, *rest = name.split(".")
        meant = functools.reduce(lambda value, part: getattr(value, part, None), rest, scope.get(first))
        for one in (meant, *typing.get_args(meant)):
            if inspect.isclass(one) and not isinstance(one, GenericAlias):
                yield one


def _returned(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    return str(function.__annotations__.get("return", "None")), _scope(function)


def _scope(function: Callable[..., Any]) -> dict[str, Any]:
    return vars(sys.modules[function.__module__])


def _as_function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", None) or getattr(member, "func", member)


# --- spelling --------------------------------------------------------------------------------------------------------


def _class(kind: type) -> str:
    name = f"dj.{kind.__name__}" if kind.__name__ in dj.__all__ else kind.__name__
    had, supported = attributes(kind), [word for special, word in SUPPORTS.items() if _defines(kind, special)]
    parts = [
        f"## {name}\n",
        f"```python\n{_signature(f'dj.{kind.__name__}', kind)}\n```\n" if kind in MADE_BY_USERS else "",
        _said(kind),
        f"Supports {', '.join(supported)}.\n" if supported else "",
        f"Attributes: {', '.join(f'`{one}`' for one in had)}.\n" if had else "",
        *(_member(each, member) for each, member in public_members(kind)),
    ]
    return "\n".join(part for part in parts if part)


def _defines(kind: type, special: str) -> bool:
    return any(special in vars(base) for base in kind.__mro__ if base.__module__.startswith("djinn_jupyter"))


def _member(name: str, member: Any) -> str:
    function = _as_function(member)
    if not isinstance(member, property | functools.cached_property):
        return _function(name, function)
    return f"### {name}\n\n```python\n{name}: {_spell(_returned(function)[0])}\n```\n\n{_said(function)}"


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"### {name}\n\n```python\n{_signature(name, function)}\n```\n\n{_said(function)}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    signed = inspect.signature(function)
    words: list[str] = []
    starred = False
    for one in signed.parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or one.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        is_object = one.kind is inspect.Parameter.POSITIONAL_ONLY and not name.startswith("dj.")
        if one.name not in ("self", "cls") and not is_object:
            words.append(_parameter(one))
    gives = "" if inspect.isclass(function) else f" -> {_spell(signed.return_annotation)}"
    line = f"{name}({', '.join(words)}){gives}"
    return line if len(line) <= LEAST_WIDTH else f"{name}(\n" + "".join(f"    {w},\n" for w in words) + f"){gives}"


def _parameter(one: inspect.Parameter) -> str:
    star = "*" if one.kind is inspect.Parameter.VAR_POSITIONAL else ""
    typed = f"{star}{one.name}: {_spell(one.annotation)}"
    if one.default is inspect.Parameter.empty:
        return typed
    return f"{typed} = {'...' if callable(one.default) else repr(one.default)}"


def _spell(hint: Any) -> str:
    """Return a type as a reader writes it: names without their modules."""
    if hint is inspect.Signature.empty:
        return "None"
    words = hint if isinstance(hint, str) else "None" if hint is None else getattr(hint, "__name__", "") or str(hint)
    if not isinstance(hint, str | type):
        words = str(hint)
    words = re.sub(r"\b(?:typing|collections\.abc|djinn_jupyter(?:\.\w+)*|replies|ask)\.(?=\w)", "", words)
    return words.replace("np.ndarray[Any, Any]", "np.ndarray").replace("NoneType", "None")


def _said(documented: Any) -> str:
    """Return a docstring as Markdown: its examples are code, and so are the settings that `takes` lists."""
    text = inspect.getdoc(documented) or ""
    text = re.sub(r"^ {4}(\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    text = re.sub(
        r"((?:^(?:>>>|\.\.\.) ?.*\n?(?:^(?!>>>|\.\.\.).+\n?)*)+)",
        r"```python\n\1```\n",
        text + "\n",
        flags=re.MULTILINE,
    )
    return text.replace("\n```\n\n\n", "\n```\n\n").rstrip() + "\n"


def _tree() -> str:
    return (errors.__doc__ or "").split("\n\n")[1]
