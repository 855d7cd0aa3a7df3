"""Messages to frames and back: msgpack for the small things, one frame per array.

    request  [envelope msgpack {id, body}] [array 0] [array 1] ...
    reply    [envelope msgpack {id, body}] [array 0] ...
    event    [] [envelope msgpack {id, body}]

Replies and events arrive in one order. The first frame of an event is empty, that of a reply never is. Inside the
envelope an array is `{dtype, shape, frame}`. Unknown fields, unknown tags, missing frames, frames without a reference
and lengths beyond the limits are refused with MalformedMessage or MessageTooLarge; values that no noun accepts, with
the noun's own UsageError. No pickle.

A message is encoded in parts. msgspec gives way to no other thread while it encodes, and takes 40 ms for a million
pairs; between two parts Python lets the others run. The bytes are those that msgspec makes of the whole.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar, Union

import msgspec
from msgspec import inspect

from djinn_jupyter.errors import MalformedMessage, MessageTooLarge, NotEncodable, UsageError, WireError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import BOUNDED_BY, Failed
from djinn_jupyter.wire.kinds import What, any_of
from djinn_jupyter.wire.logs import ASKED_BY, TRACEPARENT, Trace
from djinn_jupyter.wire.pieces import MOST_FRAMES, WHOLE_BYTES, sizes_of
from djinn_jupyter.wire.replies import Event, Reply
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.texts import sendable

RUN: Final = 4096  # entries at most of a part
FEW: Final = 8  # entries of a list that count as one
_SCALARS: Final = (
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
)
_MAP, _LIST = (0x80, b"\xde", b"\xdf"), (0x90, b"\xdc", b"\xdd")


def encoded(message: msgspec.Struct, encoder: msgspec.msgpack.Encoder) -> bytes | memoryview:
    """Return the bytes of a message."""
    if entries_of(message) <= RUN:
        return encoder.encode(message)
    written = bytearray()
    _write(message, encoder, written)
    return memoryview(written)


def _write(value: Any, encoder: msgspec.msgpack.Encoder, written: bytearray) -> None:
    if entries_of(value) <= RUN:
        encoder.encode_into(value, written, -1)
    elif isinstance(value, msgspec.Struct):
        _write_struct(value, encoder, written)
    else:
        written += _head(len(value), *_LIST)
        for run in _runs(value):
            if len(run) == 1:
                _write(run[0], encoder, written)
            else:
                written += memoryview(encoder.encode(run))[len(_head(len(run), *_LIST)) :]


def _write_struct(value: msgspec.Struct, encoder: msgspec.msgpack.Encoder, written: bytearray) -> None:
    config, defaults = value.__struct_config__, _defaults(value) if value.__struct_config__.omit_defaults else {}
    named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    told = ((key, name, getattr(value, name)) for key, name in named)
    fields = {
        key: one
        for key, name, one in told
        if one is not msgspec.UNSET and (name not in defaults or one != defaults[name])
    }
    written += _head(len(fields) + (config.tag is not None), *_MAP)
    if config.tag is not None:
        written += encoder.encode(config.tag_field) + encoder.encode(config.tag)
    for key, one in fields.items():
        encoder.encode_into(key, written, -1)
        _write(one, encoder, written)


def _defaults(value: msgspec.Struct) -> dict[str, Any]:
    names, given = value.__struct_fields__, value.__struct_defaults__
    return dict(zip(names[len(names) - len(given) :], given, strict=True))


def _head(count: int, short: int, long: bytes, longest: bytes) -> bytes:
    """Return the bytes before the entries of a list or map."""
    if count < 16:
        return bytes([short | count])
    return long + count.to_bytes(2, "big") if count < 2**16 else longest + count.to_bytes(4, "big")


def _runs(values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the entries in runs of at most RUN entries, or of one longer entry."""
    for start in range(0, len(values), RUN):
        run = values[start : start + RUN]
        if all(map(_is_flat, set(map(type, run)))) or _are_short(run):
            yield run
            continue
        first = entries = 0
        for at, size in enumerate(map(entries_of, run)):
            if at > first and entries + size > RUN:
                yield run[first:at]
                first, entries = at, 0
            entries += size
        yield run[first:]


def _are_short(values: tuple[Any, ...]) -> bool:
    """Return whether these are short lists of numbers and texts, such as edges."""
    return (
        set(map(type, values)) == {tuple} and max(map(len, values)) <= FEW and all(map(_is_flat, map(type, values[0])))
    )


def entries_of(value: Any) -> int:
    """Return the amount to encode, up to RUN: a number or a text counts as one."""
    if isinstance(value, msgspec.Struct):
        return 1 + sum(entries_of(getattr(value, name)) for name in _lists_of(type(value)))
    if not isinstance(value, tuple | list):
        return 1
    are_flat = len(value) > RUN or all(map(_is_flat, set(map(type, value))))
    return 1 + (len(value) if are_flat else sum(map(entries_of, value)))


def _is_flat(kind: type) -> bool:
    """Return whether the values of a type hold no lists."""
    return not (_lists_of(kind) if issubclass(kind, msgspec.Struct) else issubclass(kind, tuple | list | dict))


@cache
def _lists_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that may hold lists."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return tuple(field.name for field in shape.fields if not all(map(_is_scalar, _parts(field.type))))


def _is_scalar(part: inspect.Type) -> bool:
    return isinstance(part, _SCALARS) or (
        isinstance(part, inspect.Metadata) and all(map(_is_scalar, _parts(part.type)))
    )


def _parts(shape: inspect.Type) -> tuple[inspect.Type, ...]:
    return shape.types if isinstance(shape, inspect.UnionType) else (shape,)


MAX_ENVELOPE_BYTES: Final = 64 * 2**20
MAX_ARRAY_BYTES: Final = 4 * 2**30
MAX_FRAMES: Final = MOST_FRAMES

_LIMIT = re.compile(r"Expected (?P<limit>.+) - at \$\.body\.(?P<field>\w+(?:\.\w+)*)")
_NUMBER = re.compile(rb"[\x81-\x8f]\xa2id([\x00-\x7f]|\xcc.|\xcd.{2}|\xce.{4}|\xcf.{8})", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value (?P<given>.+) - at \$\.body\.(?P<field>\w+(?:\.\w+)*)")
_UNKNOWN = re.compile(r"Invalid value '(?P<name>.+)' - at \$\.body\.request")

WireFrame = bytes | memoryview
Body = TypeVar("Body")


class Envelope(
    msgspec.Struct, Generic[Body], frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A message with its number, which matches a reply to its request, or for an event lets a client report what it has
    received. A request names its trace (wire/logs.py), for the engine's log."""

    id: int
    body: Body
    traceparent: Annotated[str, msgspec.Meta(pattern=TRACEPARENT, max_length=64)] = ""
    asked_by: Annotated[str, msgspec.Meta(pattern=ASKED_BY, max_length=64)] = ""

    @property
    def trace(self) -> Trace:
        return Trace.read(self.traceparent, self.asked_by)


class ArrayHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    frame: int


class _Numbered(msgspec.Struct):
    id: int


class FrameReader:
    """Hands out the array frames of one message, each exactly once."""

    def __init__(self, frames: Sequence[WireFrame]) -> None:
        self.frames = frames
        self.taken: set[int] = set()

    def __call__(self, kind: type, value: Any) -> Any:
        if kind is not Array:
            raise NotImplementedError(f"{kind} does not cross the wire")
        header = msgspec.convert(value, ArrayHeader)
        if not 0 <= header.frame < len(self.frames) or header.frame in self.taken:
            raise MalformedMessage(f"Array frame {header.frame} is missing or used twice.")
        self.taken.add(header.frame)
        return Array(dtype=header.dtype, shape=header.shape, data=self.frames[header.frame])

    def require_all_taken(self) -> None:
        """Raise MalformedMessage for frames that nothing refers to."""
        if len(self.taken) != len(self.frames):
            raise MalformedMessage(f"The message carries {len(self.frames)} arrays and refers to {len(self.taken)}.")


def encode(number: int, body: Request | Reply, trace: Trace | None = None) -> list[WireFrame]:
    """Return the frames of a request or reply. Raises NotEncodable and MessageTooLarge."""
    traceparent, asked_by = ("", "") if trace is None else (trace.traceparent, trace.asked_by)
    arrays: list[WireFrame] = []

    def place(value: Any) -> Any:
        if isinstance(value, Array):
            arrays.append(memoryview(value.data).cast("B"))
            return ArrayHeader(dtype=value.dtype, shape=value.shape, frame=len(arrays) - 1)
        if isinstance(value, str):  # an instance of another class, such as numpy's
            return str.__str__(value)
        raise NotImplementedError(f"{type(value)} does not cross the wire")

    with _sayable(body):
        message = Envelope(id=number, body=body, traceparent=traceparent, asked_by=asked_by)
        head = encoded(message, msgspec.msgpack.Encoder(enc_hook=place))
    frames = [head, *arrays]
    require_sizes(sizes_of(frames))
    return frames


@contextmanager
def _sayable(body: object) -> Iterator[None]:
    """Raise NotEncodable, in a sentence, for any error that prevents the encoding of `body`."""
    try:
        yield
    except (ValueError, OverflowError, TypeError, NotImplementedError, RecursionError) as error:
        raise NotEncodable(f"The {type(body).__name__} cannot be sent: it holds {_obstacle(error)}.") from None


def _obstacle(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "a whole number of more than 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "text with one half of a surrogate pair, which is no character"
    return f"what no message can carry ({str(error) or type(error).__name__})"


def encode_reply(number: int, reply: Reply) -> list[WireFrame]:
    """Return the frames of a reply, or of a failure with the reason where it is not encodable: every request is
    answered."""
    try:
        if isinstance(reply, Failed):
            reply = Failed(code=reply.code, message=sendable(reply.message))
        return encode(number, reply)
    except WireError as error:
        return encode(number, Failed(code=error.code, message=sendable(str(error))))


def encode_checked(number: int, request: Request, trace: Trace | None = None) -> list[WireFrame]:
    """Return the frames as `encode` does. Raises UsageError where a field exceeds its own limits, which msgspec checks
    only on reading."""
    with _limits_in_words():
        frames = encode(number, request, trace)
        decode_request(frames)
    return frames


def as_read(request: Request) -> Request:
    """Return the request as its receiver would read it. Raises UsageError where it is unreadable."""
    with _limits_in_words():
        return decode_request(encode(0, request)).body


@contextmanager
def _limits_in_words() -> Iterator[None]:
    try:
        yield
    except (MalformedMessage, NotEncodable) as error:
        raise UsageError(_limit_in_words(str(error))) from None


def _limit_in_words(said: str) -> str:
    """Return msgspec's message as `max_new_tokens: expected int >= 0.`"""
    said_plainly = said.replace("`", "")
    found = _LIMIT.search(said_plainly)
    if found is not None:
        return f"{found['field']}: expected {found['limit']}."
    found = _UNKNOWN.search(said_plainly)
    if found is not None:
        return (
            f"{found['name']} is no request that is known here: its class line has to say its reply, as in "
            "SessionRequest[Reply], its module has to be `request` of a package, and an entry point of "
            "djinn_jupyter.methods has to name that."
        )
    found = _CHOICE.search(said_plainly)
    return said if found is None else f"{found['field']}: {found['given']} is none of its values."


def decode_request(frames: Sequence[WireFrame]) -> Envelope[Request]:
    envelope: Envelope[Request] = _decode(frames, _enveloped("requests"))
    return envelope


def decode_reply(frames: Sequence[WireFrame]) -> Envelope[Reply]:
    envelope: Envelope[Reply] = _decode(frames, _enveloped("replies"))
    return envelope


@cache
def _enveloped(what: What) -> Any:
    """Return the type of a message of any known kind."""
    envelope: Any = Envelope
    return envelope[any_of(what)]


def read_number(frames: Sequence[WireFrame]) -> int | None:
    """Return the number of a message with an unreadable body, so that it can be answered; None when it has none, or is
    large and does not begin with it."""
    try:
        if frames and (number := _NUMBER.match(frames[0])):
            return msgspec.msgpack.decode(number[1], type=int)
        if frames and memoryview(frames[0]).nbytes > WHOLE_BYTES:
            return None
        return msgspec.msgpack.decode(frames[0], type=_Numbered).id if frames else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decode(frames: Sequence[WireFrame], kind: Any) -> Any:
    require_sizes(sizes_of(frames))
    reader = FrameReader(frames[1:])
    with readable():
        envelope = msgspec.msgpack.decode(frames[0], type=kind, dec_hook=reader)
    reader.require_all_taken()
    return envelope


@contextmanager
def readable() -> Iterator[None]:
    """Raise MalformedMessage for any error of bytes that are not a message; pass on a noun's own UsageError."""
    try:
        yield
    except (MalformedMessage, UsageError):
        raise
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error.__cause__, MalformedMessage):
            raise error.__cause__ from None
        raise MalformedMessage(f"Not a message of this protocol: {error}.") from None


def require_sizes(sizes: Sequence[int]) -> None:
    """Raise MalformedMessage or MessageTooLarge for frame sizes that no message has, the envelope first."""
    if not sizes:
        raise MalformedMessage("The message has no frames.")
    if len(sizes) > MAX_FRAMES:
        raise MessageTooLarge(f"The message has more than {MAX_FRAMES} frames, which is the limit.")
    if sizes[0] > MAX_ENVELOPE_BYTES:
        raise MessageTooLarge(f"The message head has {sizes[0]} bytes, the limit is {MAX_ENVELOPE_BYTES}.")
    total = sum(sizes[1:])
    if total > MAX_ARRAY_BYTES:
        raise MessageTooLarge(f"The arrays of the message have {total} bytes, the limit is {MAX_ARRAY_BYTES}.")


def encode_event(number: int, event: Event) -> list[bytes]:
    """Return the frames of an event. Raises NotEncodable."""
    with _sayable(event):
        return [b"", msgspec.msgpack.encode(Envelope(id=number, body=event))]


def is_event(frames: Sequence[WireFrame]) -> bool:
    """Return whether a message to a client is an event and not a reply."""
    return len(frames) == 2 and memoryview(frames[0]).nbytes == 0


def decode_event(frames: Sequence[WireFrame]) -> Envelope[Event]:
    if not is_event(frames):
        raise MalformedMessage("An event has two frames, and the first is empty.")
    body = memoryview(frames[1])
    if body.nbytes > MAX_ENVELOPE_BYTES:
        raise MessageTooLarge(f"The event has {body.nbytes} bytes, the limit is {MAX_ENVELOPE_BYTES}.")
    try:
        event: Envelope[Event] = msgspec.msgpack.decode(body, type=_enveloped("events"))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"Not an event of this protocol: {error}.") from None
    return event


# A request with a large envelope is decoded in parts; between two of them, others are answered. msgspec holds the GIL
# while it decodes, a fifth of a second for a million pairs. Structs are decoded field by field, and lists in runs of
# whole entries. An entry larger than a part is itself decoded in parts.

PART_BYTES: Final = 32 * 2**10
Whole = tuple[tuple[Any, ...], list[Any]]
"""A long list as it is in the request, and its entries once more: who drops these last frees them one by one."""
Parts = Generator[Whole | None, None, Any]
_ENDS_AT: Final = "trailing characters (byte "  # msgspec on bytes after a value, which begin there
_HEADS: Final = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}  # the bytes before the entries of a list or map; else 1


@cache
def _envelope() -> type[msgspec.Struct]:
    """Return the envelope of any known request."""
    return msgspec.defstruct("_Envelope", [("body", any_of("requests"))], bases=(Envelope,), kw_only=True)


def is_large(frames: Sequence[WireFrame]) -> bool:
    """Return whether a request is to be decoded in parts."""
    return bool(frames) and memoryview(frames[0]).nbytes > PART_BYTES


def decode_in_parts(frames: Sequence[WireFrame], bounds: Mapping[str, int]) -> Parts:
    """Return the envelope of a request, as `codec.decode_request` does. Yield between the parts, also each finished
    long list. A list that a noun in `bounds` limits is refused by its length alone, before its entries are decoded.
    Raises MalformedMessage and UsageError."""
    require_sizes(sizes_of(frames))
    reader = FrameReader(frames[1:])
    reading, raw = _GradualDecoder(reader, bounds), memoryview(frames[0])
    with readable():
        read = yield from reading.value(raw, _envelope(), "the message")
    if reading.end != raw.nbytes:
        raise MalformedMessage("Not a message of this protocol: something follows it.")
    reader.require_all_taken()
    return Envelope(id=read.id, body=read.body, traceparent=read.traceparent, asked_by=read.asked_by)


class _GradualDecoder:
    """The decoding of one request. A value is given by all bytes from its first one on, including what follows it;
    `end` is the end of the last decoded value."""

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
        decoder = msgspec.msgpack.Decoder(list[item], dec_hook=self._reader)  # each type is searched once
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
        """Decode a struct from the map of its fields, which continue `at` a place after the tag."""
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
    """Return a list of so many entries from these bytes."""
    return b"\xdd" + many.to_bytes(4, "big") + bytes(entries)


def _end_of(raw: memoryview, many: int) -> int | None:
    """Return the end of so many values; None where they continue, or are invalid. msgspec skips them quickly, and
    reports where it found more."""
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
    """Return the number of entries of a list or map, from its first byte for short ones; None for other values."""
    first = raw[0]
    if first in (long, long + 1):
        return int.from_bytes(raw[1 : _HEADS[first]], "big")
    return first & 0x0F if first & 0xF0 == short else None


def _tagged(raw: memoryview, kinds: Sequence[type[msgspec.Struct]]) -> tuple[type[msgspec.Struct] | None, int]:
    """Return the struct of a map, and where its fields begin; None without a known tag, which comes first."""
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
    """Return the structs that a type is or may be."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(one for one in parts if isinstance(one, type) and issubclass(one, msgspec.Struct))


def _list_in(hint: Any) -> tuple[Any, tuple[msgspec.Meta, ...]] | None:
    """Return the entry type of the list that a type is or may be, with the list's marks; None for another type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = _list_in(parts[0])
        return (
            None if found is None else (found[0], (*found[1], *(m for m in parts[1:] if isinstance(m, msgspec.Meta))))
        )
    if origin in (Union, types.UnionType):
        return next((found for one in parts if (found := _list_in(one)) is not None), None)
    return (parts[0], ()) if origin is tuple and parts[1:] == (Ellipsis,) else None
