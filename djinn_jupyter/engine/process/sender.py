"""The sending of a service: to each request its one reply, and events to the clients that hear them. Knows which
requests wait for their reply; decides nothing. Called from the thread of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import filterfalse
from typing import Final

import zmq

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.process.admission import Admission
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.lines import Lines
from djinn_jupyter.engine.process.outbox import Outgoing
from djinn_jupyter.engine.process.peer_queues import MISSED, PeerQueues
from djinn_jupyter.engine.process.pending import PendingRequests
from djinn_jupyter.engine.process.replies_in_pieces import RepliesInPieces
from djinn_jupyter.engine.process.unread import PERSON_BYTES
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.pieces import PieceRead, is_large
from djinn_jupyter.wire.replies import Event, Failed, Reply

log = logging.getLogger(__name__)

NOT_SENT: Final = Failed(
    code="EngineError",
    message=f"The reply to this request is not sent: {spell_bytes(PERSON_BYTES)} of replies to you wait to be read. "
    "Read them, and look at the session before you go on.",
)


class Sender:
    """`pending` are the requests, by client and number, that the engine has to answer. `replies`, `dropped`,
    `unroutable` and `events` count what `ServiceStatistics` says. `cut` closes a connection."""

    def __init__(
        self,
        clients: ClientTable,
        admission: Admission,
        lines: Lines,
        queues: PeerQueues,
        cut: Callable[[bytes], None],
    ) -> None:
        self._clients, self._admission, self._lines, self._queues = clients, admission, lines, queues
        self._cut = cut
        self.in_pieces = RepliesInPieces()
        self.pending = PendingRequests()
        self.replies = self.dropped = self.unroutable = self.events = 0

    def expects(self, client: bytes, number: int) -> bool:
        """Return whether the engine is still to answer this request."""
        return (client, number) in self.pending or self.pending.was_given_up((client, number))

    def go_on(self) -> None:
        """Send what waits for room."""
        for gone in self._queues.go_on():
            self._gone(self._lines.client_on(gone))

    def send(self, outgoing: Outgoing | Event) -> None:
        if isinstance(outgoing, Outgoing):
            self._send_pending(outgoing)
        else:
            self._publish(outgoing)

    def send_reply(self, client: bytes, number: int, reply: Reply) -> None:
        self._send_encoded(Outgoing.of(client, number, reply))

    def _send_encoded(self, outgoing: Outgoing) -> None:
        """Send a reply; of a large one over a line its sizes, and the client reads it in pieces."""
        client, number, reply, frames = outgoing.peer, outgoing.number, outgoing.reply, outgoing.frames
        if not isinstance(reply, PieceRead) and self._lines.outlives(client):
            if is_large(frames):
                told = self.in_pieces.keep(client, number, frames, self._lines.key_of(client))
                frames = codec.encode_reply(number, told)
            self._lines.remember(client, number, frames)
        self.send_frames(client, number, frames)

    def send_frames(self, client: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        """Send a reply, or, where its person leaves too much unread, a sentence in its place; beyond sentences the
        connection is closed."""
        peer = self._lines.peer_of(client)
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
        """Send a client that is back on another line the events that it missed, until it is told that it misses
        some."""
        missed = self._clients.listeners.events.after(heard)
        if missed is None:
            self._send_event(client, MISSED)
        for number, event in missed or ():
            seen = self._clients.seen(client, event)
            if seen is not None:
                self._send_event(client, codec.encode_event(number, seen))
            if self._queues.is_behind(self._lines.peer_of(client)):
                return

    def dismiss(self, *clients: bytes) -> None:
        """Refuse what these clients wait for, and send them no more."""
        for client in clients:
            self._clients.dismiss(client)
            refusal = self._admission.refusal(self._key_of(client))
            for number in self._give_up(client, refusal):
                self.send_reply(client, number, refusal)
            self._admission.forget(self._lines.peer_of(client))
            self._forget(client)

    def let_go(self, peer: bytes) -> None:
        """Close a connection. Its client may come back on another, if it outlives its line."""
        log.warning("A connection is closed: its client does not read what it asks for, or asks for too much at once")
        self._cut(peer)
        self.part(peer)

    def part(self, peer: bytes) -> None:
        """Send nothing more to the client that had this routing id: its connection is lost, and the id is another
        person's now. One that outlives its line may come back on another."""
        self._queues.forget(peer)
        client = self._lines.client_on(peer)
        if self._lines.outlives(client):
            self._lines.lose(peer)
        else:
            self._clients.dismiss(client)
            self._give_up(client)

    def end(self, last: Failed) -> None:
        """Answer what is pending."""
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
            self._forget(outgoing.peer)  # it has said Goodbye

    def _publish(self, event: Event) -> None:
        self.dismiss(*filterfalse(self._admits, self._clients.listeners.of(event.session)))
        self.events += 1
        listening = self._clients.listeners_of(event)
        if not listening:
            return
        number, frames = self._clients.listeners.events.add(event)
        for person, clients in listening.items():
            heard = codec.encode_event(number, person.event(event)) if person else frames
            for client in clients:
                self._send_event(client, heard)

    def _send_event(self, client: bytes, frames: list[bytes]) -> None:
        try:
            self._queues.send_event(self._lines.peer_of(client), frames)
        except zmq.ZMQError:
            self._gone(client)

    def _forget(self, client: bytes) -> None:
        self._lines.forget(client)
        self.in_pieces.forget(client)

    def _gone(self, client: bytes) -> None:
        """Forget the listening of a client that has gone, unless it may come back."""
        if not self._lines.outlives(client):
            self._clients.listeners.forget(client)

    def _give_up(self, client: bytes, told: Failed | None = None) -> list[int]:
        """Send no answer of the engine to what this client waits for: it is `told` this, or nothing. Return the numbers
        of these requests."""
        given_up = self.pending.of(client)
        for key in given_up:
            self.pending.give_up(key, told)
        return [number for _, number in given_up]

    def _admits(self, client: bytes) -> bool:
        return self._admission.admits(self._key_of(client))

    def _key_of(self, client: bytes) -> PublicKey:
        """Return a client's key, also while its line is down."""
        return self._lines.key_of(client) if self._lines.outlives(client) else self._admission.key(client)
