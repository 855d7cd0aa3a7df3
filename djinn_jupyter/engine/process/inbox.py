"""The messages that a service has read and not yet handled, in turns between persons. All of zmq's messages are read at
once: while it keeps messages, a broken connection ends the process by an assertion (libzmq 4.3.5,
`stream_engine_base.cpp`: `!_io_error`). So the limit is here, and a connection that exceeds it is closed."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import zmq
from zmq.utils import z85

from djinn_jupyter.engine.process.seam import MESSAGE_BYTES
from djinn_jupyter.engine.system.log import LoggedRequest, WorkingOn, told
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.base import of_person, person_of, sessions_in
from djinn_jupyter.wire.codec import Envelope
from djinn_jupyter.wire.keys import LOCAL, PublicKey
from djinn_jupyter.wire.pieces import sizes_of
from djinn_jupyter.wire.replies import Edited, Failed, Paused, Reply
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.texts import label

MOST_MESSAGES: Final = 10_000  # of one person
FRAMES_AT_ONCE: Final = 4 * codec.MAX_FRAMES  # 10 ms
FRAME_BYTES: Final = 64  # at most, of a frame on its line besides its own
MOST_BYTES: Final = 256 * 2**20  # of one person, who loses the connection beyond it


@dataclass(frozen=True, slots=True)
class Message:
    """`key` is its connection's, LOCAL over the private folder."""

    peer: bytes
    key: PublicKey
    frames: list[codec.WireFrame]

    @property
    def size(self) -> int:
        return sum(sizes_of(self.frames))


@dataclass(slots=True)
class _Backlog:
    messages: deque[Message] = field(default_factory=deque)
    bytes: int = 0


class Inbox:
    """In order for each person; the engine's own user is one, without limits."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PublicKey, _Backlog] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: Message) -> bytes | None:
        """Add a message. If its person has too many, drop those of the fullest connection, and return its routing
        id."""
        theirs = self._waiting.get(message.key) or self._waiting.setdefault(message.key, _Backlog())
        theirs.messages.append(message)
        theirs.bytes += message.size
        if message.key == LOCAL or (len(theirs.messages) <= MOST_MESSAGES and theirs.bytes <= MOST_BYTES):
            return None
        most = _most_of(theirs.messages)
        theirs.messages = deque(one for one in theirs.messages if one.peer != most)
        theirs.bytes = sum(one.size for one in theirs.messages)
        if not theirs.messages:
            del self._waiting[message.key]
        return most

    def take(self) -> Message:
        """Take the next message, of the person whose turn it is. There must be one."""
        key, theirs = self._waiting.popitem(last=False)
        message = theirs.messages.popleft()
        theirs.bytes -= message.size
        if theirs.messages:
            self._waiting[key] = theirs
        return message


def _most_of(messages: Iterable[Message]) -> bytes:
    """Return the routing id of the connection whose messages take the most memory."""
    sizes: Counter[bytes] = Counter()
    for one in messages:
        sizes[one.peer] += one.size + MESSAGE_BYTES
    return sizes.most_common(1)[0][0]


class MessageReader:
    """Reads a router's messages. One with very many frames is read a few thousand at a time: zmq gives no other message
    before its end. `note` gets the first frame of each, with the bytes read."""

    def __init__(self, router: zmq.Socket[bytes], note: Callable[[zmq.Frame, int], None]) -> None:
        self._router, self._note = router, note
        self._sender: zmq.Frame | None = None  # of the message that is being read
        self._frames: list[codec.WireFrame] = []

    def read(self) -> Message | bytes:
        """Return the next message, or the routing id of a connection whose message continues. A message with too many
        frames keeps just enough to be refused. Raises zmq.Again."""
        if self._sender is None:
            self._sender, self._frames = self._router.recv(zmq.NOBLOCK, copy=False), []
        frame, frames, size = self._sender, self._frames, 0
        for _ in range(FRAMES_AT_ONCE):
            if not frame.more:
                break
            frame = self._router.recv(copy=False)
            size += len(frame) + FRAME_BYTES
            if len(frames) <= codec.MAX_FRAMES:
                frames.append(frame.buffer)
        self._note(self._sender, size)
        if frame.more:
            return self._sender.bytes
        sender, self._sender = self._sender, None
        return Message(sender.bytes, _key_of(sender), frames)


def _key_of(frame: zmq.Frame) -> PublicKey:
    """Return the key of a frame's connection; LOCAL over the private folder, whose connections alone have none
    (`ZAP_ENFORCE_DOMAIN`)."""
    try:
        return _decoded(str(frame.get("User-Id")))
    except zmq.ZMQError:
        return LOCAL


@lru_cache(maxsize=1024)
def _decoded(key: str) -> PublicKey:
    return z85.decode(key)


# The requests that wait for their reply, each with a line in the log when it comes and one when it is answered. Called
# from the thread of the service. No text, token or value is logged, and no message of an error, which may quote them.
#
#     request.began    its ids, its verb, whose it is and for which session
#     request.ended    the same, its outcome (the reply, or the error's class), how long it took, and the site

log = logging.getLogger(__name__)

Key = tuple[bytes, int]
MOST_OF_OWNER: Final = 1000
"""Requests that one person with a key may have at the engine; others' wait behind them."""
GONE: Final = "Gone"  # the outcome for a client whose connection is another's now: it gets none


@dataclass(frozen=True, slots=True)
class Begun:
    logged: LoggedRequest
    level: int
    at: float


class PendingRequests:
    """By client and number. A request that was given up counts for its person until the engine has answered it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[Key, Begun] = {}
        self._given_up: dict[Key, str | None] = {}
        self._of_person: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._begun)

    def __contains__(self, key: object) -> bool:
        return key in self._begun

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._begun))

    def has_many_of(self, person: str | None) -> bool:
        """Return whether so many requests of a person with a key are pending that no more are accepted."""
        return person is not None and self._of_person[person] >= MOST_OF_OWNER

    def was_given_up(self, key: Key) -> bool:
        return key in self._given_up

    def begin(self, key: Key, logged: LoggedRequest, request: Request) -> None:
        level = logging.DEBUG if type(request).terms.unasked else logging.INFO
        self._begun[key] = Begun(logged, level, self._clock())
        self._of_person[logged.person] += 1
        if log.isEnabledFor(level):
            with WorkingOn(logged):
                again = {"again": True} if logged.again else {}
                log.log(level, "%s began", logged.verb, extra=told("request.began", **again))

    def give_up(self, key: Key, told: Reply | None) -> None:
        """Record that a request gets another reply, or none, while the engine's is still to come."""
        self._given_up[key] = self._begun[key].logged.person
        self._log_end(self._begun.pop(key), told)

    def forget(self, key: Key) -> None:
        """Record that the engine has answered a request that was given up."""
        self._of_person[self._given_up.pop(key)] -= 1

    def end(self, key: Key, reply: Reply) -> None:
        """Record the reply of a request."""
        begun = self._begun.pop(key)
        self._of_person[begun.logged.person] -= 1
        self._log_end(begun, reply)

    def _log_end(self, begun: Begun, reply: Reply | None) -> None:
        if log.isEnabledFor(begun.level):
            outcome, site, seconds = _outcome(reply), _site(reply), round(self._clock() - begun.at, 6)
            extra = told("request.ended", outcome=outcome, seconds=seconds, **({"site": site} if site else {}))
            with WorkingOn(begun.logged):
                at = f" at {site}" if site else ""
                log.log(begun.level, "%s ended: %s%s, %.6g s", begun.logged.verb, outcome, at, seconds, extra=extra)

    def clients(self) -> set[bytes]:
        return {client for client, _ in self._begun}

    def of(self, client: bytes) -> list[Key]:
        return sorted(key for key in self._begun if key[0] == client)


def named_by(request: Request) -> str | None:
    """Return the session that a request is about."""
    return next(iter(sessions_in(request).values()), None)


def logged_request(envelope: Envelope[Request], person: str | None, *, again: bool) -> LoggedRequest:
    """Return the log line of a request."""
    named = named_by(envelope.body)
    return LoggedRequest(
        trace=envelope.trace,
        verb=type(envelope.body).__name__,
        person=person,
        session=None if named is None else _shown(named, person),
        again=again,
    )


def _shown(session: str, person: str | None) -> str:
    """Return a session's name with its person's; for a notebook's path the notebook's name."""
    owner = person_of(session) or person
    if owner is None:
        return label(session)
    return of_person(owner, label(session.removeprefix(of_person(owner, ""))))


def _outcome(reply: Reply | None) -> str:
    if reply is None:
        return GONE
    return reply.code if isinstance(reply, Failed) else type(reply).__name__


def _site(reply: Reply | None) -> str | None:
    return reply.site if isinstance(reply, Paused | Edited) else None
