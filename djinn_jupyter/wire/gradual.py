"""A request with a large envelope, decoded in parts: between two of them, others are answered. msgspec gives way to no
other thread while it decodes, and takes a fifth of a second for a million pairs.

Lists of lists are decoded list by list, and a long list of numbers, or of pairs of them, some thousand at a time.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Union

import msgspec

from djinn_jupyter.errors import MalformedMessage, UsageError
from djinn_jupyter.wire.bounds import BOUNDED_BY
from djinn_jupyter.wire.codec import Envelope, FrameReader, WireFrame, readable, require_sizes
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.traces import ASKED_BY, TRACEPARENT

PART_BYTES: Final = 128 * 2**10
KINDS: Final = {kind.__name__: kind for kind in typing.get_args(Request)}
Parts = Generator[None, None, Any]
_SIZES: Final = (*[1] * 0x80, *[0] * 0x4A, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, *[0] * 12, *[1] * 32)
"""The bytes of a number by its first one, as msgpack has it; 0 for what is none."""
_HEADS: Final = {0xDC: 3, 0xDD: 5}  # the bytes before the entries of a list, by its first one; else 1


class _Peeked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: int
    body: dict[str, msgspec.Raw]
    traceparent: Annotated[str, msgspec.Meta(pattern=TRACEPARENT, max_length=64)] = ""
    asked_by: Annotated[str, msgspec.Meta(pattern=ASKED_BY, max_length=64)] = ""


def is_large(frames: Sequence[WireFrame]) -> bool:
    """Return whether a request is to be decoded in parts."""
    return bool(frames) and memoryview(frames[0]).nbytes > PART_BYTES


def decode_in_parts(frames: Sequence[WireFrame], bounds: Mapping[str, int]) -> Parts:
    """Return the envelope of a request, as `codec.decode_request` does. A list that is bounded by one of the nouns in
    `bounds` is refused by its length alone, before its entries are decoded. Raises MalformedMessage and UsageError."""
    require_sizes([memoryview(frame).nbytes for frame in frames])
    reader = FrameReader(frames[1:])
    with readable():
        head = msgspec.msgpack.decode(frames[0], type=_Peeked)
    yield
    with readable():
        kind = KINDS.get(msgspec.msgpack.decode(head.body.get("request", b"\xc0"), type=str | None) or "")
        if kind is None:
            raise MalformedMessage("Not a message of this protocol: it is no request.")
        hints, found = _hints(kind), {}
        for name, raw in head.body.items():
            if name in hints:
                found[name] = yield from _decoded(memoryview(raw), hints[name], name, reader, bounds)
            elif name != "request" and kind.__struct_config__.forbid_unknown_fields:
                raise MalformedMessage(f"Not a message of this protocol: {kind.__name__} has no field {name!r}.")
        body = _made(kind, found)
    reader.require_all_taken()
    return Envelope(id=head.id, body=body, traceparent=head.traceparent, asked_by=head.asked_by)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _made(kind: type, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except TypeError as error:
        raise MalformedMessage(f"Not a message of this protocol: {error}.") from None


def _decoded(raw: memoryview, hint: Any, name: str, reader: FrameReader, bounds: Mapping[str, int]) -> Parts:
    count = _entries(raw)
    found = None if count is None or raw.nbytes <= PART_BYTES else _list_in(hint)
    if found is None or count is None:
        value = msgspec.msgpack.decode(raw, type=hint, dec_hook=reader)
        if raw.nbytes > PART_BYTES:
            yield
        return value
    item, marks = found
    _require_length(count, marks, name, bounds)
    if _list_in(item) is not None:
        return (yield from _lists(raw, item, name, reader, bounds))
    return (yield from _entries_of(raw, count, item, reader))


def _lists(raw: memoryview, item: Any, name: str, reader: FrameReader, bounds: Mapping[str, int]) -> Parts:
    done, values = 0, []
    small = msgspec.msgpack.Decoder(item, dec_hook=reader)  # a type is looked through once
    for one in msgspec.msgpack.decode(raw, type=list[msgspec.Raw]):
        part = memoryview(one)
        if part.nbytes > PART_BYTES:
            values.append((yield from _decoded(part, item, name, reader, bounds)))
        else:
            values.append(small.decode(part))
        done += part.nbytes
        if done > PART_BYTES:
            done = 0
            yield
    return tuple(values)


def _entries_of(raw: memoryview, count: int, item: Any, reader: FrameReader) -> Parts:
    """Decode a list in runs of whole entries, as far as first bytes tell their ends; then the rest at once."""
    steps = 1 + len(typing.get_args(item)) if typing.get_origin(item) is tuple else 1
    at, values = _HEADS.get(raw[0], 1), []
    while count:
        many = min(count, PART_BYTES // (8 * steps))
        end = _end_of(raw, at, many * steps)
        if end is None:
            many, end = count, raw.nbytes
        head = b"\xdd" + many.to_bytes(4, "big")
        values += msgspec.msgpack.decode(head + bytes(raw[at:end]), type=list[item], dec_hook=reader)
        at, count = end, count - many
        yield
    return tuple(values)


def _end_of(raw: memoryview, at: int, steps: int) -> int | None:
    """Return where so many numbers end, of which the head of a pair counts as one; None where others are there."""
    for _ in range(steps):
        if at >= raw.nbytes:
            return None
        first = raw[at]
        size = 1 if first == 0x92 else _SIZES[first]
        if not size:
            return None
        at += size
    return at


def _entries(raw: memoryview) -> int | None:
    """Return how many entries a list has; None for what is no list."""
    first = raw[0]
    if first in _HEADS:
        return int.from_bytes(raw[1 : _HEADS[first]], "big")
    return first & 0x0F if first & 0xF0 == 0x90 else None


def _require_length(count: int, marks: Sequence[msgspec.Meta], name: str, bounds: Mapping[str, int]) -> None:
    """Raise MalformedMessage for a list that is too long for its type, UsageError for the model."""
    for mark in marks:
        if not (mark.min_length or 0) <= count <= (count if mark.max_length is None else mark.max_length):
            raise MalformedMessage(f"Not a message of this protocol: $.body.{name} has {count:,} entries.")
        noun = str((mark.extra or {}).get(BOUNDED_BY))
        if count > bounds.get(noun, count):
            raise UsageError(f"{name} has {count:,} entries and the model {bounds[noun]:,} positions: give fewer.")


def _list_in(hint: Any) -> tuple[Any, tuple[msgspec.Meta, ...]] | None:
    """Return the type of the entries of the list that a type is, or may be, with the list's marks; None for another."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = _list_in(parts[0])
        return (
            None if found is None else (found[0], (*found[1], *(m for m in parts[1:] if isinstance(m, msgspec.Meta))))
        )
    if origin in (Union, types.UnionType):
        return next((found for one in parts if (found := _list_in(one)) is not None), None)
    return (parts[0], ()) if origin is tuple and parts[1:] == (Ellipsis,) else None
