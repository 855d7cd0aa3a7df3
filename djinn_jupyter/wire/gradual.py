"""A request with a large envelope, decoded in parts: between two of them, others are answered. msgspec gives way to no
other thread while it decodes, and takes a fifth of a second for a million pairs.

Structs are decoded field by field, and lists in runs of whole entries. An entry that is larger than a part is itself
decoded so.
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
from djinn_jupyter.wire.kinds import any_of

PART_BYTES: Final = 32 * 2**10
RUN: Final = 4096  # entries at most that are decoded at once
Whole = tuple[tuple[Any, ...], list[Any]]
"""A long list as it is in the request, and its entries once more: who drops these last frees them one by one."""
Parts = Generator[Whole | None, None, Any]
_ENDS_AT: Final = "trailing characters (byte "  # msgspec on bytes behind a value, which begin there
_HEADS: Final = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}  # the bytes before the entries of a list or map; else 1


@cache
def _envelope() -> type[msgspec.Struct]:
    """Return the envelope of any request that is known here."""
    return msgspec.defstruct("_Envelope", [("body", any_of("requests"))], bases=(Envelope,), kw_only=True)


def is_large(frames: Sequence[WireFrame]) -> bool:
    """Return whether a request is to be decoded in parts."""
    return bool(frames) and memoryview(frames[0]).nbytes > PART_BYTES


def decode_in_parts(frames: Sequence[WireFrame], bounds: Mapping[str, int]) -> Parts:
    """Return the envelope of a request, as `codec.decode_request` does. Yield between the parts, also each long list
    that is done. A list that is bounded by one of the nouns in `bounds` is refused by its length alone, before its
    entries are decoded. Raises MalformedMessage and UsageError."""
    require_sizes([memoryview(frame).nbytes for frame in frames])
    reader = FrameReader(frames[1:])
    reading, raw = _GradualDecoder(reader, bounds), memoryview(frames[0])
    with readable():
        read = yield from reading.value(raw, _envelope(), "the message")
    if reading.end != raw.nbytes:
        raise MalformedMessage("Not a message of this protocol: something follows it.")
    reader.require_all_taken()
    return Envelope(id=read.id, body=read.body, traceparent=read.traceparent, asked_by=read.asked_by)


class _GradualDecoder:
    """The decoding of one request. A value is given by all bytes from its first one on, whatever follows it; `end` is
    where the value decoded last ended."""

    def __init__(self, reader: FrameReader, bounds: Mapping[str, int]) -> None:
        self._reader, self._bounds = reader, bounds
        self.end = 0

    def value(self, raw: memoryview, hint: Any, name: str) -> Parts:
        """Decode a value of this type."""
        if not raw:
            raise MalformedMessage("Not a message of this protocol: it ends too early.")
        end = _end_of(raw[:PART_BYTES], 1)
        if end is None and (found := _list_in(hint)) and (count := _entries(raw, 0x90, 0xDC)) is not None:
            item, marks = found
            self._require_length(count, marks, name)
            return (yield from self._list(raw, count, item, name))
        if end is None and (kinds := _structs_in(hint)) and (count := _entries(raw, 0x80, 0xDE)) is not None:
            kind, fields = _tagged(raw, kinds)
            if kind is not None:
                return (yield from self._struct(raw, count, kind, fields))
        self.end = end or _end_of_large(raw)
        value = msgspec.msgpack.decode(raw[: self.end], type=hint, dec_hook=self._reader)
        if end is None:
            yield None
        return value

    def _list(self, raw: memoryview, count: int, item: Any, name: str) -> Parts:
        decoder = msgspec.msgpack.Decoder(list[item], dec_hook=self._reader)  # a type is looked through once
        at, many, values = _HEADS.get(raw[0], 1), RUN, list[Any]()
        while len(values) < count:
            many = min(many, RUN, count - len(values))
            end = _end_of(raw[at : at + PART_BYTES], many)
            if end is not None:
                values += decoder.decode(_list_of(many, raw[at : at + end]))
                at, many = at + end, 2 * many
                yield None
            elif many > 1:
                many //= 2
            else:
                values.append((yield from self.value(raw[at:], item, name)))
                at += self.end
        self.end = at
        whole = tuple(values)
        yield whole, values
        return whole

    def _struct(self, raw: memoryview, count: int, kind: type[msgspec.Struct], at: int) -> Parts:
        """Decode a struct from the map of its fields, which go on `at` a place behind the tag."""
        hints, found = _hints(kind), dict[str, Any]()
        for _ in range(count - (kind.__struct_config__.tag is not None)):
            field = yield from self.value(raw[at:], str, "a field")
            at += self.end
            if field not in hints and kind.__struct_config__.forbid_unknown_fields:
                raise MalformedMessage(f"Not a message of this protocol: {kind.__name__} has no field {field!r}.")
            value = yield from self.value(raw[at:], hints.get(field, Any), field)
            at += self.end
            if field in hints:
                found[field] = value
        self.end = at
        try:
            return kind(**found)
        except TypeError as error:
            raise MalformedMessage(f"Not a message of this protocol: {error}.") from None

    def _require_length(self, count: int, marks: Sequence[msgspec.Meta], name: str) -> None:
        """Raise MalformedMessage for a list that is too long for its type, UsageError for the model."""
        for mark in marks:
            if not (mark.min_length or 0) <= count <= (count if mark.max_length is None else mark.max_length):
                raise MalformedMessage(f"Not a message of this protocol: {name} has {count:,} entries.")
            noun = str((mark.extra or {}).get(BOUNDED_BY))
            if count > self._bounds.get(noun, count):
                noun_of_model = "edges" if noun == "edges" else "positions"
                raise UsageError(
                    f"{name} has {count:,} entries and the model {self._bounds[noun]:,} {noun_of_model}: give fewer."
                )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _list_of(many: int, entries: memoryview) -> bytes:
    """Return a list of so many entries, which are these bytes."""
    return b"\xdd" + many.to_bytes(4, "big") + bytes(entries)


def _end_of(raw: memoryview, many: int) -> int | None:
    """Return where so many values end; None where they go on, or are none. msgspec skips them fast, and tells where it
    found more."""
    try:
        msgspec.msgpack.decode(_list_of(many, raw), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        _, _, place = str(error).partition(_ENDS_AT)
        return int(place.rstrip(")")) - 5 if place else None
    return raw.nbytes


def _end_of_large(raw: memoryview) -> int:
    size = PART_BYTES
    while (end := _end_of(raw[:size], 1)) is None and size < raw.nbytes:
        size *= 2
    return end or raw.nbytes


def _entries(raw: memoryview, short: int, long: int) -> int | None:
    """Return how many entries a list or map has, by its first byte where they are few; None for what is none."""
    first = raw[0]
    if first in (long, long + 1):
        return int.from_bytes(raw[1 : _HEADS[first]], "big")
    return first & 0x0F if first & 0xF0 == short else None


def _tagged(raw: memoryview, kinds: Sequence[type[msgspec.Struct]]) -> tuple[type[msgspec.Struct] | None, int]:
    """Return of which struct a map is, and where its fields begin; None where its tag, which comes first, is none."""
    at, [first, *_] = _HEADS.get(raw[0], 1), kinds
    if first.__struct_config__.tag is None:
        return first, at
    end = _end_of(raw[at : at + PART_BYTES], 2)
    if end is None:
        return None, at
    field, tag = msgspec.msgpack.decode(_list_of(2, raw[at : at + end]))
    found = (one for one in kinds if (one.__struct_config__.tag_field, one.__struct_config__.tag) == (field, tag))
    return next(found, None), at + end


def _structs_in(hint: Any) -> tuple[type[msgspec.Struct], ...]:
    """Return the structs that a type is, or may be."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(one for one in parts if isinstance(one, type) and issubclass(one, msgspec.Struct))


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
