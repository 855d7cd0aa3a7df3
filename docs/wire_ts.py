"""Writes the wire's structs as TypeScript, for the JupyterLab extension. `write_reference.py` calls it."""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from djinn_jupyter.methods.sweep import request as sweeps
from djinn_jupyter.server import messages
from djinn_jupyter.wire import edits, kinds, nouns
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from djinn_jupyter.wire.base import EventBase, ReplyBase

HEAD = "/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */\n"
VALUES = """/** What an engine measured or computed; null when it is not finite. */
export type Float = number | null;

/** Little-endian, row-major. */
export interface ArrayJson {
  readonly dtype: %s;
  readonly shape: readonly number[];
  readonly base64: string;
}
"""
# Names that TypeScript's own library has for something else.
PROTOCOL = """/** The digest of the messages that this page knows; the server's has to be the same. */
export const PROTOCOL = '%s';
"""
RENAMED = {"RequestBase": "WireRequest", "ReplyBase": "WireReply", "EventBase": "WireEvent", "History": "HistoryRead"}
WRITTEN_OTHERWISE = {Array, ReplyBase, EventBase}
ASKED = (
    nouns.Sampling,
    *typing.get_args(edits.Edit),
    *kinds.ours().requests,
    *typing.get_args(messages.Said),
)


def wire_ts() -> dict[str, str]:
    """A file's name to its text: one for each module whose structs cross between browser and server, with the unions
    over them and the map from request to reply, and `index` for all of them."""
    events = kinds.ours().events
    crossing = _crossing([*messages.spoken()])
    answered = [kind for kind in kinds.ours().replies if kind in crossing]
    modules = {_file(name): importlib.import_module(name) for name in sorted({kind.__module__ for kind in crossing})}
    structs = {name: [*_interfaces(module, crossing - {*events})] for name, module in modules.items()}
    parts = {
        "values": [VALUES % " | ".join(f"'{name}'" for name in ITEM_BYTES)],
        **{name: [*_aliases(module), *structs[name]] for name, module in modules.items() if structs[name]},
        "events": [*(_interface(kind) for kind in events), _union("WireEvent", events)],
        "request": [_union("WireRequest", messages.answers_among(kinds.ours()))],
        "reply": [_union("WireReply", answered)],
        "answers": [_answers()],
        "protocol": [PROTOCOL % messages.digest()],
    }
    parts["edits"].append(_union("Edit", typing.get_args(edits.Edit)))
    parts["sweep"].append(_union("SweptEdit", typing.get_args(sweeps.SweptEdit)))
    parts["messages"] += [_union(name, typing.get_args(getattr(messages, name))) for name in ("Live", "Said")]
    texts = {name: "\n".join(part) for name, part in parts.items() if part}
    files = {name: "\n".join([HEAD, *_imports(name, texts), text]) for name, text in texts.items()}
    index = "".join(f"export * from './{name}';\n" for name in texts)
    return {f"{name}.ts": text for name, text in (*files.items(), ("index", f"{HEAD}\n{index}"))}


def _file(module: str) -> str:
    """Return the name of a module's file: of a method's requests the method's."""
    folder, _, name = module.rpartition(".")
    return folder.rpartition(".")[2] if name == "request" else name


def _crossing(kinds: Iterable[Any]) -> set[type]:
    """Return the structs among some kinds and all that their fields hold."""
    crossing: set[type] = set()
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop()
        waiting += [part for part in typing.get_args(kind) if not isinstance(part, str)]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in {*crossing, *WRITTEN_OTHERWISE}:
            crossing.add(kind)
            waiting += typing.get_type_hints(kind).values()
    return crossing


def _imports(name: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield the imports of names that the text of a file uses and another file defines."""
    words = set(
        re.findall(r"\b[A-Z]\w+\b", re.sub(r"/\*.*?\*/|'[^']*'|readonly \w+\??:", "", texts[name], flags=re.DOTALL))
    )
    for other, text in texts.items():
        defined = set(re.findall(r"^export (?:type|interface) (\w+)", text, flags=re.MULTILINE))
        if other != name and words & defined:
            names = "".join(f"  {word},\n" for word in sorted(words & defined))
            yield f"import {{\n{names}}} from './{other}';\n"


def _interfaces(module: types.ModuleType, crossing: set[type]) -> Iterator[str]:
    """Yield those structs of a module that cross, in their order."""
    for kind in vars(module).values():
        if isinstance(kind, type) and kind in crossing and kind.__module__ == module.__name__:
            yield _interface(kind)


def _aliases(module: types.ModuleType) -> Iterator[str]:
    """Yield the names of literals that a module defines."""
    source = inspect.getsource(module)
    for name, value in vars(module).items():
        if typing.get_origin(value) is typing.Literal and re.search(rf"^{name}\b.* = ", source, flags=re.MULTILINE):
            yield f"export type {name} = {_spell(value, asked=True)};\n"


def _interface(kind: type[Any]) -> str:
    config = kind.__struct_config__
    hints = typing.get_type_hints(kind, include_extras=False)
    tag = [f"  readonly {config.tag_field}: '{config.tag}';"] if config.tag_field else []
    fields = [_field(kind, field, hints[field.name]) for field in msgspec.structs.fields(kind)]
    return "\n".join([*_said(kind), f"export interface {_name(kind)} {{", *tag, *fields, "}\n"])


def _said(kind: type) -> list[str]:
    said = [line.strip() for line in (kind.__doc__ or "").strip().splitlines()] if "__doc__" in vars(kind) else []
    if len(said) < 2:
        return [f"/** {said[0]} */"] if said else []
    return ["/**", *(f" * {line}".rstrip() for line in said), " */"]


def _field(kind: type, field: msgspec.structs.FieldInfo, hint: Any) -> str:
    optional = msgspec.UnsetType in typing.get_args(hint) or (kind in ASKED and not field.required)
    return f"  readonly {field.encode_name}{'?' if optional else ''}: {_spell(hint, asked=kind in ASKED)};"


def _spell(hint: Any, *, asked: bool) -> str:
    """`asked`: in the browser's form, where a number is a number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or isinstance(hint, types.UnionType):
        parts = [_spell(part, asked=asked) for part in arguments if part is not msgspec.UnsetType]
        return " | ".join(dict.fromkeys(parts)) if len(parts) < 7 else _union_name(arguments)
    if origin is typing.Literal:
        return " | ".join(f"'{value}'" for value in arguments)
    if origin is tuple:
        return _many(_spell(arguments[0], asked=asked))
    if origin is dict:
        return f"{{ readonly [name: string]: {_spell(arguments[1], asked=asked)} }}"
    plain = {str: "string", int: "number", bool: "boolean", type(None): "null", Array: "ArrayJson"}
    if hint is float:
        return "number" if asked else "Float"
    return plain[hint] if hint in plain else _name(hint)


def _many(item: str) -> str:
    return f"readonly ({item})[]" if " " in item else f"readonly {item}[]"


def _union_name(members: tuple[Any, ...]) -> str:
    named = {edits.Edit: "Edit", sweeps.SweptEdit: "SweptEdit"}
    empty = {type(None)} & set(members)
    found = next(name for union, name in named.items() if set(typing.get_args(union)) == set(members) - empty)
    return f"{found} | null" if empty else found


def _name(kind: type) -> str:
    if issubclass(kind, edits.EditBase):
        return f"{kind.__name__}Edit"
    return RENAMED.get(kind.__name__, kind.__name__)


def _union(name: str, members: Iterable[type]) -> str:
    rows = "\n".join(f"  | {_name(member)}" for member in members)
    return f"export type {name} =\n{rows};\n"


def _answers() -> str:
    answered = messages.answers_among(kinds.ours())
    rows = "\n".join(f"  readonly {asked.__name__}: {_name(reply)};" for asked, reply in answered.items())
    said = "/** What each request is answered with; `Failed` comes as an error. */"
    return f"{said}\nexport interface Answers {{\n{rows}\n}}\n"
