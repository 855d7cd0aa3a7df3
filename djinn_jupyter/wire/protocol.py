"""The protocol of this copy of the package: its version, a digest of every struct of the core that crosses the wire or
is an entry in the registry, and one for each method.

The version alone does not distinguish two commits. Where it or the core's digest differs, the other side has another
version of Djinn, and is only asked for its name and to end. A method that one side lacks, or has in another version, is
refused alone.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from djinn_jupyter import extensions
from djinn_jupyter._version import __version__
from djinn_jupyter.errors import DjinnError, MalformedMessage, VersionMismatch
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire.codec import ArrayHeader, Envelope
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.requests import Hello

DIGEST_CHARACTERS: Final = 16


@cache
def digest() -> str:
    """Return the digest of the core's messages. It takes about 15 ms, once a process, and is the same in every
    process."""
    return digest_of((Envelope[Any], ArrayHeader, *kinds.core().all, Entry))


def method_digests() -> dict[str, str]:
    """Return the digests of the messages of the methods in use here, by name."""
    usable = extensions.methods()
    return {method.name: digest for method, digest in _of_methods().items() if method in usable}


@cache
def _of_methods() -> dict[extensions.Method, str]:
    return {method: digest_of(added.all) for method, added in kinds.of_methods().items()}


def require_method(kind: type[msgspec.Struct], there: Mapping[str, str], other: str) -> None:
    """Raise VersionMismatch for a request of a method that is left out here, or that the other side, whose methods have
    the digests `there`, lacks or has in another version."""
    method = kinds.method_of(kind)
    if method is None:
        return
    if (trouble := extensions.troubles().get(method)) is not None:
        raise VersionMismatch(trouble)
    if (wrong := apart(there).get(method.name)) is not None:
        raise VersionMismatch(
            f"{other} {wrong} the method {method}: install the same version for both, end the engine with `djinn stop` "
            "and load again."
        )


def explained(error: DjinnError, there: Mapping[str, str]) -> DjinnError:
    """Return why a message of the other side is unreadable here: it may belong to a method that this side lacks, or has
    in another version, by their names."""
    names = [name for name in apart(there) if name in there]
    if not names or not isinstance(error, MalformedMessage):
        return error
    return VersionMismatch(
        f"The engine lacks {' and '.join(names)} of the client's methods, or has another version: install the same for "
        f"both, end the engine with `djinn stop` and load again. {error}"
    )


def is_shared(kind: type[msgspec.Struct], there: Mapping[str, str]) -> bool:
    """Return whether the other side has the same definition of this kind of message."""
    method = kinds.method_of(kind)
    return method is None or method.name not in apart(there)


def apart(there: Mapping[str, str]) -> dict[str, str]:
    """Return the difference for each method that the two sides do not share: the other side "lacks" it, "has another
    version of" it, or "alone has" it."""
    here = method_digests()
    return {
        name: "lacks" if name not in there else "has another version of" if name in here else "alone has"
        for name in (*here, *sorted(set(there) - set(here)))
        if here.get(name) != there.get(name)
    }


def digest_of(parts: Iterable[Any]) -> str:
    """Return a digest of the structs of these types and the structs inside them: names, tags, fields and their
    types."""
    structs: dict[type, str] = {}
    for kind in parts:
        _spell(msgspec.inspect.type_info(kind), structs)
    return hashlib.sha256("\n".join(sorted(structs.values())).encode()).hexdigest()[:DIGEST_CHARACTERS]


def hello(*, holder: str, user: str, notebook: str | None = None, observer: bool = False, token: str = "") -> Hello:
    """Return the first message of a client of this copy."""
    return Hello(
        version=__version__,
        protocol=digest(),
        methods=tuple(method_digests().items()),
        holder=holder,
        user=user,
        notebook=notebook,
        observer=observer,
        token=token,
    )


def difference(version: str, protocol: str) -> str | None:
    """Describe how another side's version differs from this one's; None where both have the same protocol."""
    if version != __version__:
        return f"{version}, this is {__version__}"
    return None if protocol == digest() else f"both are called {version}, but their messages differ"


def _spell(part: Any, structs: dict[type, str]) -> str:
    """Spell a type, a struct by its name alone; its contents go into `structs`."""
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
