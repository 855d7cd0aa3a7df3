"""Replies and events that leave the engine, in order: posted from its thread, sent by the service's. Replies are
encoded before, in the posting thread: the service's thread answers others meanwhile.

Knows no network sockets; the socket pair here only wakes a thread that polls.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Final

import zmq

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.inbox import PendingRequests
from djinn_jupyter.engine.process.seam import UNKNOWN_KEY, Transport, bytes_of
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.remote.engine.access_keys import AdmittedKeys
from djinn_jupyter.remote.engine.connections import ReconnectTable
from djinn_jupyter.remote.engine.large_messages import LUMP_BYTES, MOST_UNREAD, Backpressure
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.codec import WireFrame, encode_reply
from djinn_jupyter.wire.greeting import EventsMissed
from djinn_jupyter.wire.keys import LOCAL, PublicKey
from djinn_jupyter.wire.replies import Event, Failed, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A reply and its frames, with the client and the request that it answers."""

    peer: bytes
    number: int
    reply: Reply
    frames: list[WireFrame]

    @classmethod
    def of(cls, peer: bytes, number: int, reply: Reply) -> Outgoing:
        return cls(peer=peer, number=number, reply=reply, frames=encode_reply(number, reply))


class Outbox:
    """First in, first out, any number of posters, one taker.

    The taker clears the mark *before* it takes; a poster appends *before* it looks at the mark, and sends a byte when
    there was none. So a byte is on its way for each item not taken, and a surplus byte only wakes.

    `let_out` is for a poster with other work to do: that work would hold the GIL, which the taker needs to send.
    """

    def __init__(self) -> None:
        self._outgoing: deque[Outgoing | Event] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._marked = False
        self._empty = threading.Event()

    def fileno(self) -> int:
        """Return the descriptor that is readable when an item is waiting."""
        return self._reader.fileno()

    def post(self, outgoing: Outgoing | Event) -> None:
        self._empty.clear()
        self._outgoing.append(outgoing)
        self.wake()

    def wake(self) -> None:
        """End a poll on `fileno` even if no item is waiting."""
        if not self._marked:
            self._marked = True
            try:
                self._writer.send(b"\0")
            except (BlockingIOError, OSError):
                pass  # full: the taker is awake already; closed: there is no taker

    def take(self, *, woken: bool) -> list[Outgoing | Event]:
        """Take all items that are waiting. `woken`: `fileno` was readable."""
        if woken:
            self._reader.recv(64)
        self._marked = False
        return [self._outgoing.popleft() for _ in range(len(self._outgoing))]

    def note_sent(self) -> None:
        """Record that the taken items have been sent. An item posted meanwhile may end a `let_out` early."""
        if not self._outgoing:
            self._empty.set()

    def let_out(self, seconds: float) -> None:
        """Return when all items have been sent, or after so many seconds."""
        self._empty.wait(seconds)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


# The queues of messages to the clients of a ROUTER, each in order. Replies to a client that does not read wait for it;
# its events are dropped beyond a bound, and it is told so before the next one. Who comes by a key leaves no more than
# a number of bytes unread.

log = logging.getLogger(__name__)

MESSAGES_QUEUED: Final = 10_000
"""By zmq for each client, events and replies together. An event takes 100 to 300 bytes."""
COMPLAINT_SECONDS: Final = 1.0
MISSED: Final = codec.encode_event(0, EventsMissed(session=""))
Frames = Sequence[codec.WireFrame]


@dataclass(slots=True)
class _Behind:
    """The messages that wait for one client, and its key when the first one began to wait."""

    key: PublicKey
    messages: deque[Frames] = field(default_factory=deque)


class PeerQueues:
    """A client is behind from the first message that its queue does not take until there is room again. `key_of`
    returns its key."""

    def __init__(self, router: zmq.Socket[bytes], messages_queued: int, key_of: Callable[[bytes], PublicKey]) -> None:
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, messages_queued)
        self._router, self._key_of = router, key_of
        self._behind: dict[bytes, _Behind] = {}
        self._backpressure = Backpressure()
        self.events_dropped = 0

    @property
    def behind(self) -> bool:
        """True while messages wait for room."""
        return bool(self._behind)

    def is_behind(self, peer: bytes) -> bool:
        return peer in self._behind

    def has_room(self, peer: bytes, frames: Frames = ()) -> bool:
        """Return whether the person of a client's key has read enough for a message to be sent."""
        return self._backpressure.has_room(self._key_of(peer), bytes_of(frames) if frames else 0)

    def takes_no_more(self, peer: bytes) -> bool:
        return self._backpressure.takes_no_more(self._key_of(peer))

    def send_reply(self, peer: bytes, frames: Frames) -> None:
        """Raises zmq.ZMQError where the client has gone."""
        if peer not in self._behind:
            try:
                return self._send(peer, frames)
            except zmq.Again:
                pass
        self._wait(peer, frames)

    def send_event(self, peer: bytes, frames: Frames) -> None:
        """Send an event, or drop it where the client or its owner is behind. Raises zmq.ZMQError without the client."""
        if peer not in self._behind:
            try:
                if self.has_room(peer, frames):
                    return self._send(peer, frames)
            except zmq.Again:
                pass
            log.info("A client does not read its events; they are dropped until it does")
            self._wait(peer, MISSED)
        elif MISSED not in self._behind[peer].messages:
            self._wait(peer, MISSED)
        self.events_dropped += 1

    def forget(self, peer: bytes) -> None:
        """Drop the messages that wait under a routing id."""
        if (behind := self._behind.pop(peer, None)) is not None:
            self._backpressure.wait(behind.key, peer, -sum(map(bytes_of, behind.messages)))

    def go_on(self) -> Iterable[bytes]:
        """Send waiting messages, where there is room. Return the clients that have gone, whose messages are dropped."""
        gone = []
        for peer, behind in tuple(self._behind.items()):
            try:
                while behind.messages:
                    self._send(peer, behind.messages[0])
                    self._backpressure.wait(behind.key, peer, -bytes_of(behind.messages.popleft()))
            except zmq.Again:
                continue
            except zmq.ZMQError:
                gone.append(peer)
            self.forget(peer)
        return gone

    def keep_only(self, known: Callable[[bytes], bool]) -> list[bytes]:
        """Drop the records of unknown clients. Return those to disconnect, because nothing is read under their key."""
        return self._backpressure.keep_only(known)

    def full(self) -> tuple[PublicKey, ...]:
        """Return the keys under which too much is unread. May be called from any thread."""
        return self._backpressure.full

    def _wait(self, peer: bytes, frames: Frames) -> None:
        behind = self._behind.setdefault(peer, _Behind(self._key_of(peer)))
        behind.messages.append(frames)
        self._backpressure.wait(behind.key, peer, bytes_of(frames))

    def _send(self, peer: bytes, frames: Frames) -> None:
        key, count = self._key_of(peer), bytes_of(frames)
        if not self._backpressure.is_tracked(key, peer, count):
            self._router.send_multipart([peer, *frames], zmq.NOBLOCK, copy=count < LUMP_BYTES)
            return self._backpressure.take(key, peer, count, None)
        last = zmq.Frame(frames[-1], track=True, copy=False)
        self._router.send_multipart([peer, *frames[:-1], last], zmq.NOBLOCK, copy=False)
        self._backpressure.take(key, peer, count, last.tracker)


# The sending of a service: one reply for each request, and events to the clients that hear them. Knows which requests
# are pending; decides nothing. Called from the thread of the service.

NOT_SENT: Final = Failed(
    code="EngineError",
    message=f"The reply to this request is not sent: {spell_bytes(MOST_UNREAD)} of replies to you wait to be read. "
    "Read them, and look at the session before you go on.",
)


class Sender:
    """`pending` are the requests, by client and number, that the engine has to answer. `replies`, `refused`,
    `dropped`, `unroutable` and `events` are the counts of `ServiceStatistics`. `keys` are those of connections; `cut`
    closes one."""

    def __init__(
        self,
        clients: ClientTable,
        keys: dict[bytes, PublicKey],
        admitted: AdmittedKeys,
        reconnects: ReconnectTable,
        queues: PeerQueues,
        cut: Callable[[bytes], None],
    ) -> None:
        self._clients, self._keys, self._admitted = clients, keys, admitted
        self._reconnects, self._queues, self._cut = reconnects, queues, cut
        self.pending = PendingRequests()
        self.replies = self.refused = self.dropped = self.unroutable = self.events = 0
        self._complained = 0.0

    def client_on(self, peer: bytes) -> bytes:
        """Return the present client of a connection."""
        return self._reconnects.on.get(peer, peer)

    def transport(self, client: bytes) -> Transport:
        return self._reconnects.clients.get(client) or Transport(client, self._keys.get(client, UNKNOWN_KEY))

    def expects(self, client: bytes, number: int) -> bool:
        """Return whether the engine is still to answer this request."""
        return (client, number) in self.pending or self.pending.was_given_up((client, number))

    def go_on(self) -> None:
        """Send waiting messages, where there is room."""
        for gone in self._queues.go_on():
            self._gone(self.client_on(gone))

    def send(self, outgoing: Outgoing | Event) -> None:
        if isinstance(outgoing, Outgoing):
            self._send_pending(outgoing)
        else:
            self._publish(outgoing)

    def send_reply(self, client: bytes, number: int, reply: Reply) -> None:
        self._send_encoded(Outgoing.of(client, number, reply))

    def refuse(self, client: bytes, number: int | None, error: DjinnError) -> None:
        """Answer a message with an error. One without a number, or with a pending request's, is dropped and sometimes
        logged."""
        if number is None or (client, number) in self.pending:
            self.dropped += 1
            if time.monotonic() - self._complained > COMPLAINT_SECONDS:
                self._complained = time.monotonic()
                log.warning("Dropped a message, %d so far: %s", self.dropped, error)
            return
        self.refused += 1
        self.send_reply(client, number, Failed.of(error))

    def _send_encoded(self, outgoing: Outgoing) -> None:
        client, number = outgoing.peer, outgoing.number
        self.send_frames(client, number, self.transport(client).outgoing(number, outgoing.reply, outgoing.frames))

    def send_frames(self, client: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        """Send a reply, or, where its owner leaves too much unread, a sentence in its place; beyond sentences the
        connection is closed."""
        peer = self.transport(client).peer
        if self._queues.takes_no_more(peer):
            self.dropped += 1
            return self.let_go(peer)
        if not self._queues.has_room(peer, frames):
            frames = codec.encode_reply(number, NOT_SENT)
        try:
            self._queues.send_reply(peer, frames)
        except zmq.ZMQError as error:
            self.unroutable += 1
            log.info("A reply found its asker gone: %s", error)
        else:
            self.replies += 1

    def catch_up(self, client: bytes, heard: int) -> None:
        """Send a reconnected client the events that it missed, or report that it misses some."""
        missed = self._clients.listeners.events.after(heard)
        if missed is None:
            self._send_event(client, MISSED)
        for number, event in missed or ():
            seen = self._clients.seen(client, event)
            if seen is not None:
                self._send_event(client, codec.encode_event(number, seen))
            if self._queues.is_behind(self.transport(client).peer):
                return

    def dismiss(self, *clients: bytes) -> None:
        """Refuse the pending requests of these clients, and send them no more."""
        for client in clients:
            self._clients.dismiss(client)
            transport = self.transport(client)
            refusal = self._admitted.refusal(transport.key)
            for number in self._give_up(client, refusal):
                self.send_reply(client, number, refusal)
            self._keys.pop(transport.peer, None)
            self._reconnects.forget(client)

    def let_go(self, peer: bytes) -> None:
        """Close a connection. Its client may return on another, if it outlives its connection."""
        log.warning("A connection is closed: its client does not read what it asks for, or asks for too much at once")
        self._cut(peer)
        self.part(peer)

    def part(self, peer: bytes) -> None:
        """Send nothing more to the client that had this routing id: its connection is lost, and the id is another's
        now. One that outlives its connection may return on another."""
        self._queues.forget(peer)
        client = self.client_on(peer)
        if self.transport(client).may_return:
            self._reconnects.lose(peer)
        else:
            self._clients.dismiss(client)
            self._give_up(client)

    def end(self, last: Failed) -> None:
        """Answer the pending requests."""
        for client, number in sorted(self.pending):
            self.pending.end((client, number), last)
            self.send_reply(client, number, last)

    def _send_pending(self, outgoing: Outgoing) -> None:
        key = (outgoing.peer, outgoing.number)
        if not self._admits(outgoing.peer):
            self.dismiss(outgoing.peer)
        if self.pending.was_given_up(key):
            return self.pending.forget(key)
        if key not in self.pending:
            log.error("A request was answered twice; the second answer, %s, is not sent", type(outgoing.reply).__name__)
            return
        self.pending.end(key, outgoing.reply)
        self._send_encoded(outgoing)
        if not self._clients.knows(outgoing.peer):
            self._reconnects.forget(outgoing.peer)  # it has said Goodbye

    def _publish(self, event: Event) -> None:
        self.dismiss(*filterfalse(self._admits, self._clients.listeners.of(event.session)))
        self.events += 1
        hearing = self._clients.hearing(event)
        if not hearing:
            return
        number, frames = self._clients.listeners.events.add(event)
        for heard, clients in hearing:
            encoded = frames if heard is event else codec.encode_event(number, heard)
            for client in clients:
                self._send_event(client, encoded)

    def _send_event(self, client: bytes, frames: list[bytes]) -> None:
        try:
            self._queues.send_event(self.transport(client).peer, frames)
        except zmq.ZMQError:
            self._gone(client)

    def _gone(self, client: bytes) -> None:
        """Remove the listeners of a client that has gone, unless it may return."""
        if not self.transport(client).may_return:
            self._clients.listeners.forget(client)

    def _give_up(self, client: bytes, told: Failed | None = None) -> list[int]:
        """Answer this client's pending requests with `told`, or nothing, for the engine. Return their numbers."""
        given_up = self.pending.of(client)
        for key in given_up:
            self.pending.give_up(key, told)
        return [number for _, number in given_up]

    def _admits(self, client: bytes) -> bool:
        key = self.transport(client).key
        return key == LOCAL or self._admitted.admits(key)
