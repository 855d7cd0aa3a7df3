"""The messages that a service has read and not yet handled, in turns between persons. All that zmq has is read at once:
where it has to keep messages, a connection that breaks then ends the process by an assertion (libzmq 4.3.5,
`stream_engine_base.cpp`: `!_io_error`). So the bound is here, and who goes beyond it loses the connection.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import zmq
from zmq.utils import z85

from djinn_jupyter.engine.process.admission import LOCAL
from djinn_jupyter.engine.process.unread import MESSAGE_BYTES
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey

MOST_MESSAGES: Final = 10_000  # of one person
FRAMES_AT_ONCE: Final = 4 * codec.MAX_FRAMES  # 10 ms
FRAME_BYTES: Final = 64  # at most, of a frame on its line besides its own
MOST_BYTES: Final = 256 * 2**20  # of one person, who loses the connection beyond it


@dataclass(frozen=True, slots=True)
class Message:
    """`key` is that of its connection, LOCAL over the private folder."""

    peer: bytes
    key: PublicKey
    frames: list[codec.WireFrame]

    @property
    def size(self) -> int:
        return sum(memoryview(frame).nbytes for frame in self.frames)


@dataclass(slots=True)
class _Backlog:
    messages: deque[Message] = field(default_factory=deque)
    bytes: int = 0


class Inbox:
    """In order for each person; the engine's own user is one, without bounds."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PublicKey, _Backlog] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: Message) -> bytes | None:
        """Add a message. Where its person has too many here, drop those of the connection that has most, and return its
        routing id."""
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
        """Take the next message, of the person whose turn it is. There has to be one."""
        key, theirs = self._waiting.popitem(last=False)
        message = theirs.messages.popleft()
        theirs.bytes -= message.size
        if theirs.messages:
            self._waiting[key] = theirs
        return message


def _most_of(messages: Iterable[Message]) -> bytes:
    """Return the routing id of the connection whose messages take most memory."""
    sizes: Counter[bytes] = Counter()
    for one in messages:
        sizes[one.peer] += one.size + MESSAGE_BYTES
    return sizes.most_common(1)[0][0]


class MessageReader:
    """Reads a router's messages. One with very many frames is read some thousand at a time: zmq gives no other message
    before its end. The first frame of each is handed to `note`, with the bytes that were read of it."""

    def __init__(self, router: zmq.Socket[bytes], note: Callable[[zmq.Frame, int], None]) -> None:
        self._router, self._note = router, note
        self._sender: zmq.Frame | None = None  # of the message that is being read
        self._frames: list[codec.WireFrame] = []

    def read(self) -> Message | bytes:
        """Return the next message, or the routing id of a connection whose message goes on. Of one with too many frames
        so many are kept that it is refused. Raises zmq.Again."""
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
    """Return the key of the connection on which a frame came; LOCAL over the private folder, whose connections alone
    have none (`ZAP_ENFORCE_DOMAIN`)."""
    try:
        return _decoded(str(frame.get("User-Id")))
    except zmq.ZMQError:
        return LOCAL


@lru_cache(maxsize=1024)
def _decoded(key: str) -> PublicKey:
    return z85.decode(key)
