"""Messages between the server extension and a browser, beyond the wire's own requests, replies and events.

`docs/server.md` is the contract around these; `labextension/src/wire/` is written from them.
"""

from __future__ import annotations

import base64
import binascii
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from djinn_jupyter.errors import DjinnError, MalformedMessage, MessageTooLarge
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Failed, Frozen
from djinn_jupyter.wire.kinds import Kinds, any_of, ours
from djinn_jupyter.wire.nouns import EngineStatistics, ModelDescription, SessionDescription
from djinn_jupyter.wire.protocol import digest_of
from djinn_jupyter.wire.replies import Event, Reply
from djinn_jupyter.wire.requests import Request

EngineState = Literal["connecting", "ready", "refused"]


class KernelDescription(Frozen, frozen=True):
    """A kernel of this server. `state` is Jupyter's execution state: starting, idle, busy, restarting, dead..."""

    id: str
    state: str


class LiveSession(Frozen, frozen=True):
    """A session with its notebook and kernel. `notebook` is the contents path of the notebook that it belongs to,
    `kernel` the kernel that holds it, both None where this server has none. `idle_since` in seconds since the epoch;
    `described.idle_seconds` is as of the last change of any other field. `closed`: no kernel or process has it open,
    and its notebook has no kernel."""

    described: SessionDescription
    label: str
    notebook: str | None
    kernel: KernelDescription | None
    idle_since: float
    closed: bool = False


class EngineFound(Frozen, frozen=True):
    """An engine of the registry. In state `refused` it has no connection, for `reason`; `description` is None until
    `ready`. `model` is the name as requested, `load` the arguments of `%djinn_load` that select this engine; `started`
    in seconds since the epoch. `pid` is None on another machine, which `host` then names as the user does. `down_since`
    is when the line to it was lost, in seconds since the epoch; None while it is up."""

    id: str
    model: str
    load: str
    pid: int | None
    host: str
    version: str
    started: float
    state: EngineState
    reason: str | None
    description: ModelDescription | None
    down_since: float | None = None


class LiveEngine(Frozen, frozen=True):
    """An engine with its statistics and its sessions by name. `statistics` is None until first read."""

    found: EngineFound
    statistics: EngineStatistics | None
    sessions: dict[str, LiveSession]


class Engines(Frozen, frozen=True):
    """The answer of GET engines; `version` is the server's own, `protocol` the digest of the messages that it knows."""

    version: str
    protocol: str
    engines: tuple[EngineFound, ...]


class Accepted(Frozen, frozen=True, tag_field="reply"):
    """The engine has accepted a move; its outcome comes over the WebSocket under the same number."""

    move: int


class Sampled(Frozen, frozen=True):
    """The number of tokens a session sampled since the last delta, and the text of at most the last 1000 of them."""

    count: int
    step: int
    text: str


class EngineChange(Frozen, frozen=True, omit_defaults=True):
    """The changed parts of an engine; omitted fields are unchanged. A session that is null has been closed."""

    found: EngineFound | msgspec.UnsetType = msgspec.UNSET
    statistics: EngineStatistics | msgspec.UnsetType = msgspec.UNSET
    sessions: dict[str, LiveSession | None] | msgspec.UnsetType = msgspec.UNSET
    sampled: dict[str, Sampled] | msgspec.UnsetType = msgspec.UNSET


class LiveMessage(Frozen, tag_field="live"):
    """A message of the server on the WebSocket. `sequence` is one more than that of the previous message."""

    sequence: int


class LiveOutcome(LiveMessage, frozen=True, tag="outcome"):
    """The end of an accepted move: Paused, Finished or Failed. `request` is the verb's name."""

    engine: str
    session: str
    request: str
    move: int
    reply: Reply


class LiveSnapshot(LiveMessage, frozen=True, tag="snapshot"):
    """The whole state, sent at each connect and after a gap; it replaces all earlier state. `outcomes` are the latest
    ones, oldest first, for a browser that was disconnected. `at` in seconds since the epoch."""

    at: float
    version: str
    engines: dict[str, LiveEngine]
    outcomes: tuple[LiveOutcome, ...]


class LiveDelta(LiveMessage, frozen=True, tag="delta"):
    """The changes since the previous message. `gone` maps ended engines to reasons, "" where in order."""

    at: float
    appeared: dict[str, LiveEngine]
    changed: dict[str, EngineChange]
    gone: dict[str, str]


class LiveEvent(LiveMessage, frozen=True, tag="event"):
    """An engine's event, unchanged. TokenSampled is not forwarded: see `EngineChange.sampled`."""

    engine: str
    event: Event


Live = LiveSnapshot | LiveDelta | LiveEvent | LiveOutcome


class Focus(Frozen, frozen=True, tag_field="say", tag="focus"):
    """The notebook that this browser window shows now, by its contents path; None for none."""

    notebook: str | None


class Resync(Frozen, frozen=True, tag_field="say", tag="resync"):
    """A request for a snapshot, after the browser missed a message."""


Said = Focus | Resync


def answers_among(kinds: Kinds) -> dict[type[Request], Any]:
    """Return these, of some kinds. A move is answered when the engine has accepted it; its outcome comes later."""
    return {
        kind: Accepted if kind.terms.browser == "moves" else kind.answered_by
        for kind in kinds.requests
        if kind.terms.browser
    }


# Convert the wire's structs to and from the JSON of a browser: arrays in base64, sizes bounded. Refuses messages
# outside the protocol. A non-finite float becomes null: JSON cannot represent it.

MAX_REQUEST_BYTES: Final = 64 * 2**20
MAX_ARRAY_BYTES: Final = 32 * 2**20
MAX_SAID_BYTES: Final = 64 * 2**10
Decoded = TypeVar("Decoded")


class _ArrayJson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    base64: str


def read_request(body: bytes) -> Request:
    """Decode a request. MessageTooLarge, or MalformedMessage with the error in one sentence."""
    if len(body) > MAX_REQUEST_BYTES:
        raise MessageTooLarge(f"The request has {len(body)} bytes, the limit is {MAX_REQUEST_BYTES}.")
    request: Request = _read(body, any_of("requests"), "a request")
    return request


def read_said(text: str | bytes) -> Said:
    said: Said = _read(text.encode() if isinstance(text, str) else text, Said, "a message to the live WebSocket")
    return said


def write(value: Any) -> bytes:
    """Encode a value. MessageTooLarge where its arrays have more than MAX_ARRAY_BYTES bytes in total."""
    total = 0

    def spell(part: Any) -> _ArrayJson:
        nonlocal total
        if not isinstance(part, Array):
            raise NotImplementedError(f"{type(part)} does not cross to a browser")
        total += part.nbytes
        if total > MAX_ARRAY_BYTES:
            raise MessageTooLarge(
                f"The answer has arrays of more than {MAX_ARRAY_BYTES} bytes: ask for fewer positions at a time."
            )
        return _ArrayJson(dtype=part.dtype, shape=part.shape, base64=base64.b64encode(part.data).decode())

    return msgspec.json.encode(value, enc_hook=spell)


def _read(body: bytes, kind: Any, named: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_array)
    except DjinnError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        cause = error.__cause__
        said = cause if isinstance(cause, DjinnError) else error
        raise MalformedMessage(f"Not {named} of this protocol: {str(said).rstrip('.')}.") from None


def _array(kind: type, value: Any) -> Array:
    if kind is not Array:
        raise NotImplementedError(f"{kind} does not come from a browser")
    header = msgspec.convert(value, _ArrayJson)
    try:
        content = base64.b64decode(header.base64, validate=True)
    except binascii.Error as error:
        raise MalformedMessage(f"an array's base64 cannot be read ({error})") from None
    return Array(dtype=header.dtype, shape=header.shape, data=content)


# The digest of the messages between the sidebar and the server: a page built with another one is not spoken to.
# `docs/wire_ts.py` writes it into the sidebar's bundle. An engine's own is in `wire/protocol.py`.


@cache
def spoken() -> tuple[Any, ...]:
    """Return the messages between browser and server, of the core and of our methods."""
    answers = answers_among(ours())
    return (*answers, *answers.values(), Accepted, Failed, Engines, Live, Said, *ours().replies, *ours().events)


@cache
def digest() -> str:
    """Return the digest of these messages, once a process."""
    return digest_of(spoken())
