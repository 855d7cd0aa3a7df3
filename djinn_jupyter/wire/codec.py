"""Messages to frames and back: msgpack for the small things, one frame per array.

    request    [envelope msgpack {id, body}] [array 0] [array 1] ...
    reply      [envelope msgpack {id, body}] [array 0] ...
    event      [] [envelope msgpack {id, body}]

Replies and events arrive in one order. The first frame of an event is empty, that of a reply never is.

Inside the envelope an array is `{dtype, shape, frame}`. Unknown fields, unknown tags, missing frames, frames without a
reference and lengths beyond the limits are refused with MalformedMessage or MessageTooLarge; values that no noun
accepts, with the noun's own UsageError. No pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from djinn_jupyter.errors import MalformedMessage, MessageTooLarge, NotEncodable, UsageError, WireError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.encoding_in_parts import encoded
from djinn_jupyter.wire.failed import Failed
from djinn_jupyter.wire.kinds import What, any_of
from djinn_jupyter.wire.pieces import MOST_FRAMES, WHOLE_BYTES
from djinn_jupyter.wire.replies import Event, Reply
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.texts import sendable
from djinn_jupyter.wire.traces import ASKED_BY, TRACEPARENT, Trace

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
    """A message with the number by which its answer finds the asker, or of an event, by which a client says what it has
    heard. A request names its trace (wire/traces.py), for the log of the engine."""

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
        if isinstance(value, str):  # of a class of its own, as numpy's
            return str.__str__(value)
        raise NotImplementedError(f"{type(value)} does not cross the wire")

    with _sayable(body):
        message = Envelope(id=number, body=body, traceparent=traceparent, asked_by=asked_by)
        head = encoded(message, msgspec.msgpack.Encoder(enc_hook=place))
    frames = [head, *arrays]
    _check_sizes(frames)
    return frames


@contextmanager
def _sayable(body: object) -> Iterator[None]:
    """Raise NotEncodable, in a sentence, for any error that keeps `body` from becoming bytes."""
    try:
        yield
    except (ValueError, OverflowError, TypeError, NotImplementedError, RecursionError) as error:
        raise NotEncodable(f"A {type(body).__name__} cannot be sent: it holds {_obstacle(error)}.") from None


def _obstacle(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "a whole number of more than 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "text with one half of a surrogate pair, which is no character"
    return f"what no message can carry ({str(error) or type(error).__name__})"


def encode_reply(number: int, reply: Reply) -> list[WireFrame]:
    """Return the frames of a reply, or of the failure that says why it cannot be sent: every request is answered."""
    try:
        if isinstance(reply, Failed):
            reply = Failed(code=reply.code, message=sendable(reply.message))
        return encode(number, reply)
    except WireError as error:
        return encode(number, Failed(code=error.code, message=sendable(str(error))))


def encode_checked(number: int, request: Request, trace: Trace | None = None) -> list[WireFrame]:
    """Return the frames as `encode` does. Raises UsageError where a field breaks its own limits: msgspec looks at them
    on reading only."""
    with _limits_in_words():
        frames = encode(number, request, trace)
        decode_request(frames)
    return frames


def as_read(request: Request) -> Request:
    """Return the request as its receiver would read it. Raises UsageError where it could not be read."""
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
    """Return the type of a message of any kind that is known here."""
    envelope: Any = Envelope
    return envelope[any_of(what)]


def read_number(frames: Sequence[WireFrame]) -> int | None:
    """Return the number of a message whose body could not be read, so that it can be answered; None when it has none,
    or is large and does not begin with it."""
    try:
        if frames and (number := _NUMBER.match(frames[0])):
            return msgspec.msgpack.decode(number[1], type=int)
        if frames and memoryview(frames[0]).nbytes > WHOLE_BYTES:
            return None
        return msgspec.msgpack.decode(frames[0], type=_Numbered).id if frames else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decode(frames: Sequence[WireFrame], kind: Any) -> Any:
    _check_sizes(frames)
    reader = FrameReader(frames[1:])
    with readable():
        envelope = msgspec.msgpack.decode(frames[0], type=kind, dec_hook=reader)
    reader.require_all_taken()
    return envelope


@contextmanager
def readable() -> Iterator[None]:
    """Raise MalformedMessage for any error of bytes that are no message; a noun's own UsageError as it is."""
    try:
        yield
    except (MalformedMessage, UsageError):
        raise
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error.__cause__, MalformedMessage):
            raise error.__cause__ from None
        raise MalformedMessage(f"Not a message of this protocol: {error}.") from None


def _check_sizes(frames: Sequence[WireFrame]) -> None:
    require_sizes([memoryview(frame).nbytes for frame in frames])


def require_sizes(sizes: Sequence[int]) -> None:
    """Raise MalformedMessage or MessageTooLarge where no message has frames of these sizes, the envelope first."""
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
    """Return whether a message to a client is an event; else it is a reply."""
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
