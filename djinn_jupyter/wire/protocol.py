"""The protocol of this copy of the package: its version, and a digest of every struct that crosses the wire
or is an entry in the registry.

The version alone does not tell two commits apart. Where either differs, the other side is of another version of Djinn,
and nothing but its name and its end is asked of it.
"""

from __future__ import annotations

import hashlib
import typing
from functools import cache
from typing import Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.wire.codec import ArrayHeader, Envelope
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, Reply
from djinn_jupyter.wire.requests import Hello, Request

SPOKEN: Final = (Envelope[Any], ArrayHeader, Request, Reply, Event, Entry)
DIGEST_CHARACTERS: Final = 16


@cache
def digest() -> str:
    """Return the digest of all messages. It takes about 15 ms, once a process, and is the same in every process."""
    return digest_of(SPOKEN)


def digest_of(kinds: tuple[Any, ...]) -> str:
    """Return a digest of the structs of `kinds` and of those they contain: names, tags, fields and their types."""
    structs: dict[type, str] = {}
    for kind in kinds:
        _spell(msgspec.inspect.type_info(kind), structs)
    return hashlib.sha256("\n".join(sorted(structs.values())).encode()).hexdigest()[:DIGEST_CHARACTERS]


def hello(*, holder: str, user: str, notebook: str | None = None, observer: bool = False, token: str = "") -> Hello:
    """Return the first message of a client of this copy."""
    return Hello(
        version=__version__,
        protocol=digest(),
        holder=holder,
        user=user,
        notebook=notebook,
        observer=observer,
        token=token,
    )


def difference(version: str, protocol: str) -> str | None:
    """Say how another side's version differs from this one's; None where both speak the same protocol."""
    if version != __version__:
        return f"{version}, this is {__version__}"
    return None if protocol == digest() else f"both are called {version}, but their messages differ"


def _spell(part: Any, structs: dict[type, str]) -> str:
    """Spell a type, a struct by its name alone; what it is made of goes into `structs`."""
    match part:
        case msgspec.inspect.StructType(tag_field=field, tag=tag):
            return _name_of(part, f"{field}={tag}", structs)
        case msgspec.inspect.DataclassType():
            return _name_of(part, "", structs)
        case msgspec.inspect.UnionType(types=types):
            return " | ".join(sorted(_spell(one, structs) for one in types))
        case msgspec.inspect.LiteralType(values=values):
            return " | ".join(sorted(map(repr, values)))
        case msgspec.inspect.Type():
            given = ((name, getattr(part, name)) for name in part.__struct_fields__)
            inside = (f"{name}={_spell(value, structs)}" for name, value in given if value is not None)
            return f"{type(part).__name__}({', '.join(inside)})"
        case tuple():
            return ", ".join(_spell(one, structs) for one in part)
    return part.__qualname__ if isinstance(part, type) else repr(part)


def _name_of(struct: Any, tag: str, structs: dict[type, str]) -> str:
    kind: type = typing.get_origin(struct.cls) or struct.cls
    if kind not in structs:
        structs[kind] = kind.__qualname__  # before its fields: a struct may contain itself
        fields = (f"{f.encode_name}{'' if f.required else '?'}: {_spell(f.type, structs)}" for f in struct.fields)
        structs[kind] = f"{kind.__qualname__} [{tag}] {'; '.join(fields)}"
    return kind.__qualname__
