"""The ZMQ socket in front of an engine: a ROUTER for requests, replies and events, one polling thread. Decides nothing.

    client DEALER <-> ROUTER
    [client][envelope][array]...   each request is answered exactly once
    [client][][event]              to each client that listens to its session

Bytes that are no valid message are answered with Failed where a request number can be read in them; else they are
dropped, counted and logged. The engine's own user connects over a private folder. On TCP both sides have keys (CURVE),
and the connection's key says for every message whose it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.inbox import MOST_OF_OWNER, Inbox, Message, MessageReader, logged_request
from djinn_jupyter.engine.process.large_requests import LargeRequests, Read
from djinn_jupyter.engine.process.seam import UNKNOWN_KEY, Owner
from djinn_jupyter.engine.process.sender import MESSAGES_QUEUED, Outbox, Outgoing, PeerQueues, Sender
from djinn_jupyter.engine.system.faults import Faults, in_short
from djinn_jupyter.engine.system.log import WorkingOn
from djinn_jupyter.errors import DjinnError, EngineError, EngineUnavailable, KeyRefused, UsageError, WireError
from djinn_jupyter.remote.engine.access_keys import DOMAIN, AdmittedKeys, Door, Doorkeeper
from djinn_jupyter.remote.engine.connections import Connections, ReconnectTable, draw_unforeseen_ids, name_of
from djinn_jupyter.remote.engine.large_messages import MOST_UNREAD, LargeMessages, no_budget
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import LOCAL, PublicKey
from djinn_jupyter.wire.nouns import OwnerBudget
from djinn_jupyter.wire.pieces import Assemble, DropPieces, PieceRequest, PutPiece, ReadPiece
from djinn_jupyter.wire.replies import Failed, Reply
from djinn_jupyter.wire.requests import Hello, Ping, Request

log = logging.getLogger(__name__)

NOT_TAKEN = (
    f"The engine does not take this request: {spell_bytes(MOST_UNREAD)} of replies to you wait to be read. Read them, "
    "and ask again."
)
MANY = (
    f"The engine does not take this request: {MOST_OF_OWNER:,} requests of yours wait for their answers. Wait for "
    "some, and ask again."
)
UNKNOWN = (
    "The engine does not know this client any more: it was started anew, or has let the client go (its key was "
    "revoked, or it was away for a day). Load it again, and look at your sessions before you go on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """The service's counts. `dropped` could not be answered, `refused` were answered with Failed before the engine saw
    them, `unroutable` are replies whose client had gone, `pending` wait for the engine. `events` are the engine's,
    `events_dropped` those that a client did not read."""

    requests: int
    replies: int
    refused: int
    dropped: int
    unroutable: int
    events: int
    events_dropped: int
    pending: int
    clients: int


HANDSHAKE_MILLISECONDS = 10_000  # after which a connection without the key is closed and its descriptor freed
REQUESTS_PER_TURN = 64
TURN_SECONDS = 0.005  # at most, to read and to handle messages, before replies go on
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 10, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
SWEEP_SECONDS = 1.0
POLL_MILLISECONDS = 1000
BEHIND_MILLISECONDS = 20  # while messages wait for a client that is slow to read: no event of a ROUTER tells of room
PAUSE_SECONDS = 0.05
MOST_FAILURES = 200  # of polls in a row: ten seconds
NO_REQUEST = "The pieces that were put under this number are no request of this number."
STOPPED = Failed(code="EngineUnavailable", message="The engine has been stopped.")


def draw() -> tuple[bytes, bytes]:
    """Draw a CURVE pair: public and secret, 32 bytes each."""
    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)


class Service:
    """Bound at its creation, served from `start` to `stop`. `commands` is the endpoint that clients of this user
    connect to, `listens` the one for persons with keys, None without a door.

    Only the polling thread touches the socket between `start` and `stop`. A reply posted by the engine for a request
    that is not pending (answered already) is a bug and is logged, not sent. An error of a request is its answer; an
    error outside requests is noted in `faults`. `broken` is called when messages can no longer be read.
    """

    def __init__(
        self,
        clients: ClientTable,
        outbox: Outbox,
        *,
        commands: str,
        door: Door | None = None,
        message_bytes: int = codec.MAX_ARRAY_BYTES,
        messages_queued: int = MESSAGES_QUEUED,
        broken: Callable[[], None] = lambda: None,
        faults: Faults | None = None,
        budget_of: Callable[[str], OwnerBudget] = no_budget,
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        if not commands.startswith("ipc://"):
            raise UsageError("An engine listens beyond a private folder only at a door, with CURVE keys.")
        self._clients, self._outbox, self._broken = clients, outbox, broken
        self._faults = faults or Faults()
        draw_unforeseen_ids()
        self._context = zmq.Context()
        self._keys: dict[bytes, PublicKey] = {}  # of connections, LOCAL over the private folder
        self._admitted = AdmittedKeys(door.admitted if door else None)
        self._authenticator = self._guard(door) if door else None
        self._router = self._socket(zmq.ROUTER, message_bytes)
        self._connections = Connections(self._router, self._knows, self._key_of)
        self._reader = MessageReader(self._router, self._note)
        self._inbox, self._in_pieces = Inbox(), LargeMessages(budget_of)
        self._reconnects = ReconnectTable(self._in_pieces)
        self._queues = PeerQueues(self._router, messages_queued, self._key_of)
        self._sender = Sender(
            clients, self._keys, self._admitted, self._reconnects, self._queues, self._connections.cut
        )
        self._large = LargeRequests(bounds or {})
        self.commands = self._bind(self._router, commands)
        self.listens = self._open(self._router, door) if door else None
        self._thread = threading.Thread(target=self._serve, name="djinn-service", daemon=True)
        self._stopping = threading.Event()
        self._requests = 0

    def statistics(self) -> ServiceStatistics:
        return ServiceStatistics(
            requests=self._requests,
            replies=self._sender.replies,
            refused=self._sender.refused,
            dropped=self._sender.dropped,
            unroutable=self._sender.unroutable,
            events=self._sender.events,
            events_dropped=self._queues.events_dropped,
            pending=len(self._sender.pending),
            clients=self._clients.attached,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, last: Failed = STOPPED) -> None:
        """Answer pending requests with `last`, send waiting replies and events, close the sockets."""
        self._stopping.set()
        self._outbox.wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._sender.end(last)
        self._in_pieces.close()
        self._connections.close()
        self._router.close(linger=1000)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
        self._outbox.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._connections.monitor, self._outbox.fileno()):
            poller.register(source, zmq.POLLIN)
        swept, failures = time.monotonic(), 0
        while not self._stopping.is_set():
            try:
                ready = dict(poller.poll(self._patience))
                failures = 0
            except Exception as error:  # noqa: BLE001  such as a lack of file descriptors, which may pass
                failures += 1
                ready = self._not_ready(error, failures)
            self._turn(ready)
            if self._connections.at_door:
                self._connections.look()
            if time.monotonic() - swept > SWEEP_SECONDS:
                swept = time.monotonic()
                with self._faults.during("the service looked who has gone"):
                    self._sweep()
        self._turn({})

    def _sweep(self) -> None:
        turned_away = [peer for peer, key in self._keys.items() if not self._admitted.admits(key)]
        self._sender.dismiss(*map(self._sender.client_on, turned_away))
        self._clients.sweep()
        waiting = self._sender.pending.clients()
        for peer in [peer for peer in self._keys if not (self._knows(peer) or peer in waiting)]:
            del self._keys[peer]
        for peer in self._queues.keep_only(self._knows):
            self._sender.let_go(peer)
        self._connections.sweep()
        self._reconnects.sweep(self._clients.knows)

    @property
    def _patience(self) -> int:
        """The milliseconds to wait for something to do."""
        if self._inbox or self._large.busy:
            return 0
        return BEHIND_MILLISECONDS if self._queues.behind or self._connections.unfinished else POLL_MILLISECONDS

    def require_reader(self, owner: str) -> None:
        """Raise EngineError where an owner leaves too much unread. May be called from any thread."""
        if any(self._admitted.name_of(key) == owner for key in self._queues.full()):
            raise EngineError(NOT_TAKEN)

    def _key_of(self, peer: bytes) -> PublicKey:
        return self._keys.get(peer, UNKNOWN_KEY)

    def _knows(self, peer: bytes) -> bool:
        return self._clients.knows(self._sender.client_on(peer))

    def _not_ready(self, error: Exception, failures: int) -> dict[object, int]:
        """Record a failed poll and wait for a moment; after MOST_FAILURES in a row call `broken`."""
        self._faults.note("the service waited for messages", error)
        self._stopping.wait(PAUSE_SECONDS)
        if failures == MOST_FAILURES:
            log.critical("The service cannot read messages any more; the engine has to stop")
            self._broken()
        return {}

    def _turn(self, ready: Mapping[object, int]) -> None:
        """Receive and send, each even if the other fails; pause after a fault."""
        before = self._faults.count
        with self._faults.during("the service read requests"):
            if self._connections.monitor in ready:
                self._connections.read_events()
            if self._router in ready:
                self._read()
            self._receive()
            self._large.go_on()
        with self._faults.during("the service sent what waited"):
            self._send_waiting(woken=self._outbox.fileno() in ready)
        if self._faults.count != before:
            self._stopping.wait(PAUSE_SECONDS)

    def _read(self) -> None:
        """Read zmq's messages, for TURN_SECONDS at most; disconnect senders of too many or too large ones."""
        until = time.monotonic() + TURN_SECONDS
        with suppress(zmq.Again):
            while time.monotonic() < until:
                message = self._reader.read()
                if isinstance(message, bytes):
                    return self._sender.let_go(message)
                if message.peer in self._connections.cut_off:
                    continue
                if (too_many := self._inbox.put(message)) is not None:
                    self._sender.let_go(too_many)

    def _note(self, sender: zmq.Frame, size: int) -> None:
        """Record the data received on a connection; for this user's own only the first."""
        if self._keys.get(sender.bytes) != LOCAL:
            self._connections.note(sender, size)

    def _receive(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        for _ in range(REQUESTS_PER_TURN):
            if not self._inbox or time.monotonic() > until:
                return
            self._take(self._inbox.take())

    def _take(self, message: Message) -> None:
        peer, key = message.peer, message.key
        if peer in self._connections.cut_off:
            return
        if self._key_of(peer) != key:
            self._sender.part(peer)
        self._keys[peer] = key
        self._large.read(peer, key, message.frames, partial(self._accept, message))

    def _accept(self, message: Message, read: Read) -> None:
        """Accept a message of the present owner of its key."""
        peer, key, frames = message.peer, message.key, message.frames
        if peer in self._connections.cut_off:
            return
        self._keys[peer] = key  # it may have been forgotten meanwhile
        client = self._sender.client_on(peer)
        decoded = self._admitted_request(client, key, read, lambda: codec.read_number(frames))
        if decoded is None:
            return
        envelope, owner = decoded
        if isinstance(envelope.body, Hello):
            hello = envelope.body
            comes_anew = hello.heard is not None and name_of(hello.token, key) not in self._reconnects.clients
            if comes_anew and hello.engine in ("", self._clients.engine):
                return self._sender.refuse(client, envelope.id, EngineUnavailable(UNKNOWN))
            try:
                if not self._knows(peer):
                    self._connections.require_room()
            except EngineError as error:
                return self._sender.refuse(client, envelope.id, error)
            client = self._reconnects.greet(peer, hello.token, key, resent_before=envelope.id if comes_anew else 0)
        elif not self._sender.transport(client).take(envelope.id):
            return self._answer_again(client, envelope, owner)
        elif isinstance(envelope.body, Assemble):
            return self._assemble(client, envelope.id, key)
        self._hand_on(client, envelope, owner)

    def _admitted_request(
        self, client: bytes, key: PublicKey, read: Read, number_of: Callable[[], int | None]
    ) -> tuple[codec.Envelope[Request], Owner] | None:
        """Return the request that was read, and its owner. None for an invalid one, and for one of an owner whose
        admission ended since the handshake, which are answered."""
        try:
            owner = None if key == LOCAL else self._admitted.person(key)
        except KeyRefused as refused:
            peer = self._sender.transport(client).peer
            self._sender.dismiss(client)
            self._keys[peer] = key  # whose unread refusals these are
            self._sender.refuse(peer, number_of(), refused)
            return None
        try:
            return read(), owner
        except (WireError, UsageError, EngineError) as error:
            self._sender.refuse(client, number_of(), self._clients.explained(client, error))
        except Exception as error:
            log.exception("A message could not be read")
            self._sender.refuse(client, number_of(), EngineError(f"It cannot be read ({in_short(error)})."))
        return None

    def _assemble(self, client: bytes, number: int, key: PublicKey) -> None:
        """Take the pieces that a client delivered under this number as its request."""
        try:
            frames = self._in_pieces.take(client, number)
        except EngineError as error:
            return self._sender.refuse(client, number, error)
        peer = self._sender.transport(client).peer
        self._large.read(peer, key, frames, partial(self._assembled, client, number, key))

    def _assembled(self, client: bytes, number: int, key: PublicKey, read: Read) -> None:
        decoded = self._admitted_request(client, key, read, lambda: number)
        if decoded is None:
            return
        envelope, owner = decoded
        if envelope.id != number or isinstance(envelope.body, Hello | PieceRequest):
            return self._sender.refuse(client, number, UsageError(NO_REQUEST))
        self._hand_on(client, envelope, owner)

    def _answer_again(self, client: bytes, envelope: codec.Envelope[Request], owner: Owner) -> None:
        """Answer a repeated request: when it is done, or now with its earlier reply."""
        if (client, envelope.id) in self._sender.pending:
            return
        if (frames := self._sender.transport(client).reply_again(envelope)) is None:
            self._hand_on(client, envelope, owner)
        else:
            self._sender.send_frames(client, envelope.id, frames)

    def _hand_on(self, client: bytes, envelope: codec.Envelope[Request], owner: Owner) -> None:
        request, transport = envelope.body, self._sender.transport(client)
        if self._sender.expects(client, envelope.id):
            return self._sender.refuse(client, None, EngineError(f"Request number {envelope.id} is in use."))
        if not type(request).terms.small and not self._queues.has_room(transport.peer):
            return self._sender.refuse(client, envelope.id, EngineError(NOT_TAKEN))
        if not type(request).terms.small and self._sender.pending.has_many_of(owner):
            return self._sender.refuse(client, envelope.id, EngineError(MANY))
        self._requests += 1
        known_as = transport.known_as(envelope.id)
        logged = logged_request(envelope, owner, again=known_as is not None and known_as.again)
        self._sender.pending.begin((client, envelope.id), logged, request)
        answer = partial(self._post, client, envelope.id)
        if isinstance(request, PieceRequest):
            return self._answer_piece(client, request, answer, owner)
        with WorkingOn(logged):
            self._clients.receive(client, request, answer, owner, known_as)
        if isinstance(request, Ping):
            transport.confirm(request.answered)
        if isinstance(request, Hello) and request.heard is not None and request.engine == self._clients.engine:
            self._sender.catch_up(client, request.heard)

    def _answer_piece(
        self, client: bytes, request: PieceRequest, answer: Callable[[Reply], None], owner: Owner
    ) -> None:
        if isinstance(request, ReadPiece | DropPieces):
            return self._in_pieces.answer(client, request, answer)
        try:
            transport = self._sender.transport(client)
            if not isinstance(request, PutPiece) or not transport.may_return:
                raise UsageError("Requests in pieces are for lines to other machines; send this one whole.")
            self._in_pieces.put(client, request, answer, transport.key, owner)
        except DjinnError as error:
            answer(Failed.of(error))

    def _post(self, client: bytes, number: int, reply: Reply) -> None:
        self._outbox.post(Outgoing.of(client, number, reply))

    def _send_waiting(self, *, woken: bool) -> None:
        self._sender.go_on()
        for outgoing in self._outbox.take(woken=woken):
            with self._faults.during("the service sent a reply or an event"):
                self._sender.send(outgoing)
        self._outbox.note_sent()

    def _socket(self, kind: int, message_bytes: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, message_bytes)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
        socket.setsockopt(zmq.RCVHWM, 0)  # the inbox has the limit, and says why
        return socket

    def _bind(self, socket: zmq.Socket[bytes], endpoint: str) -> str:
        socket.bind(endpoint)
        self._connections.listen(bound := str(socket.getsockopt_string(zmq.LAST_ENDPOINT)))
        return bound

    def _open(self, socket: zmq.Socket[bytes], door: Door) -> str:
        """Bind a door too. Settings made here apply to later bindings, not to the private folder."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else, where no one answers handshakes, all are let in unnamed
        socket.setsockopt(zmq.CURVE_SECRETKEY, door.pair.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, door.pair.public)
        for option, value in KEEPALIVE.items():  # zmq's own heartbeats can end the process (inbox.py)
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IPV6, int("[" in door.address))  # otherwise zmq spells the address differently
        return self._bind(socket, door.address)

    def _guard(self, door: Door) -> ThreadAuthenticator:
        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=Doorkeeper(door))
        return authenticator
