"""Clients that outlive a lost connection: the one on which each is spoken to now, and what it was answered, so that a
request that comes again is answered again and not done again. Knows no sockets; called from one thread. A client is
known by the token of its Hello together with the key of its connection; without a token it is its connection, and ends
with it. Its requests are numbered upwards, and after a loss it sends those again that were not answered."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import secrets
import socket
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import zmq

from djinn_jupyter.engine.process.seam import Frames, Transport, bytes_of
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.engine.system.process import limit_now
from djinn_jupyter.errors import EngineError
from djinn_jupyter.remote.engine.large_messages import LargeMessages
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.pieces import MOST_BYTES, WHOLE_BYTES, PieceRead, is_large
from djinn_jupyter.wire.replies import Event, Failed, Reply
from djinn_jupyter.wire.requests import Request

MOST_REPLIES: Final = 10_000
MOST_BYTES_OF_REPLIES: Final = 64 * 2**20


class KeptReplies:
    """Replies by client and number. `bytes` is their memory."""

    def __init__(self) -> None:
        self._replies: OrderedDict[tuple[bytes, int], list[codec.WireFrame]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._replies)

    def numbers(self, client: bytes) -> frozenset[int]:
        return frozenset(number for one, number in self._replies if one == client)

    def keep(self, client: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        self._let_go((client, number))
        self._replies[client, number] = frames
        self.bytes += bytes_of(frames)
        while len(self._replies) > MOST_REPLIES or self.bytes > MOST_BYTES_OF_REPLIES:
            self._let_go(next(iter(self._replies)))

    def get(self, client: bytes, number: int) -> list[codec.WireFrame] | None:
        return self._replies.get((client, number))

    def confirm(self, client: bytes, number: int) -> None:
        """Drop the replies up to that number: the client has them."""
        for one in self.numbers(client):
            if one <= number:
                self._let_go((client, one))

    def forget(self, client: bytes) -> None:
        for number in self.numbers(client):
            self._let_go((client, number))

    def _let_go(self, key: tuple[bytes, int]) -> None:
        if (frames := self._replies.pop(key, None)) is not None:
            self.bytes -= bytes_of(frames)


NOWHERE: Final = b""  # no connection has this routing id
_DIGEST_BYTES: Final = 16
KEPT_SECONDS: Final = 600.0
"""After which the replies to a client that is not heard any more are let go."""
NOT_KEPT: Final = Failed(
    code="EngineUnavailable",
    message="The line was lost after the engine took this request. It was done, but its reply is not kept any more: "
    "look at the session before you go on.",
)
"""The reply to a request that came again too late."""


class RemoteClient(Transport):
    """The transport of a client that may return on another connection; `key` is known also while it is disconnected.
    Requests below `resent_before` were first sent to an earlier engine. Replies stay in `kept` until the client has
    them, or its person's are too many or too large; `large` ones are read in pieces."""

    may_return = True

    def __init__(
        self,
        name: bytes,
        key: PublicKey,
        kept: KeptReplies,
        large: LargeMessages,
        resent_before: int,
        clock: Callable[[], float],
    ) -> None:
        self.name, self.key, self.peer, self.kept = name, key, NOWHERE, kept
        self._large, self._resent_before, self._clock = large, resent_before, clock
        self._digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest()
        self._taken: set[int] = set()  # requests that arrived, beyond `_confirmed`
        self._confirmed = 0  # up to this number the client has all replies
        self.heard_at = clock()

    @property
    def is_heard(self) -> bool:
        """True where a message of the client arrived within KEPT_SECONDS."""
        return self._clock() - self.heard_at <= KEPT_SECONDS

    def take(self, number: int) -> bool:
        self.heard_at = self._clock()
        if number <= self._confirmed or number in self._taken:
            return False
        self._taken.add(number)
        if len(self._taken) > MOST_REPLIES:
            self._has_all_up_to(min(self._taken))
        return True

    def known_as(self, number: int) -> RequestId | None:
        """Return the id for the journal; the token does not follow from it."""
        return RequestId(client=self._digest, number=number, again=number < self._resent_before)

    def reply_again(self, envelope: codec.Envelope[Request]) -> Frames | None:
        """Return the reply again. Where it is no longer kept: None for a request that only reads and can be repeated,
        NOT_KEPT for another."""
        frames = self.kept.get(self.name, envelope.id)
        if frames is not None or type(envelope.body).terms.resent == "anew":
            return frames
        return codec.encode_reply(envelope.id, NOT_KEPT)

    def outgoing(self, number: int, reply: Reply, frames: Frames) -> Frames:
        """Keep a reply, and return its frames; for a large one, which the client reads in pieces, its sizes."""
        if isinstance(reply, PieceRead):
            return frames
        if is_large(frames):
            frames = codec.encode_reply(number, self._large.keep(self.name, number, frames, self.key))
        self.kept.keep(self.name, number, frames)
        return frames

    def confirm(self, number: int) -> None:
        self.kept.confirm(self.name, number)
        self._has_all_up_to(min(number, max(self._taken, default=0)))

    def _has_all_up_to(self, number: int) -> None:
        """Record that the client has the replies up to that number, and sends none of these requests again."""
        self._confirmed = max(self._confirmed, number)
        self._taken = {one for one in self._taken if one > self._confirmed}


class ReconnectTable:
    """`clients` are those that outlive their connections, by name; `on` has the present client of each connection."""

    def __init__(self, large: LargeMessages, clock: Callable[[], float] = time.monotonic) -> None:
        self._large, self._clock = large, clock
        self.clients: dict[bytes, RemoteClient] = {}
        self.on: dict[bytes, bytes] = {}
        self._kept: WeakValueDictionary[PublicKey, KeptReplies] = WeakValueDictionary()  # kept by its clients

    def greet(self, peer: bytes, token: str, key: PublicKey, *, resent_before: int = 0) -> bytes:
        """Return the client that sends Hello on a connection, which is its connection from here on. A client of an
        earlier engine sends again its requests before this number."""
        self.lose(peer)
        if not token:
            return peer
        name = name_of(token, key)
        if name not in self.clients:
            kept = self._kept.setdefault(key, KeptReplies())
            self.clients[name] = RemoteClient(name, key, kept, self._large, resent_before, self._clock)
        client = self.clients[name]
        self.on.pop(client.peer, None)
        client.peer, client.heard_at = peer, self._clock()
        self.on[peer] = name
        return name

    def lose(self, peer: bytes) -> None:
        """Detach the client of a connection; it may return on another."""
        name = self.on.pop(peer, None)
        if name is not None:
            self.clients[name].peer = NOWHERE

    def hears(self, name: bytes) -> bool:
        """Return whether a client outlives its connection and sent a message within KEPT_SECONDS."""
        return name in self.clients and self.clients[name].is_heard

    def forget(self, name: bytes) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            self.on.pop(client.peer, None)
            client.kept.forget(name)
        self._large.keep_only(lambda one: one != name)

    def sweep(self, known: Callable[[bytes], bool]) -> None:
        """Drop the replies to clients that were silent for KEPT_SECONDS, and clients that are no longer `known`."""
        for name, client in tuple(self.clients.items()):
            if not known(name):
                self.forget(name)
            elif not client.is_heard:
                client.kept.forget(name)
        self._large.keep_only(self.hears)


def name_of(token: str, key: PublicKey) -> bytes:
    """Return the name of the client with that token and key."""
    return b"client " + token.encode() + b" " + key


# A listener of libzmq that accepts one connection on each call. libzmq accepts all connections, and has no call to
# wait. On Linux its listeners are in an epoll set; an EPOLLONESHOT entry there reports one connection and then rests
# until it is armed again. The set and the entry's data are read from the process's own fdinfo (proc(5)). Where that is
# missing, as on macOS, libzmq accepts as usual.

_FDINFO: Final = Path("/proc/self/fdinfo")
_ENTRY: Final = r"^tfd: *{} events: *[0-9a-f]*[13579bdf] data: *([0-9a-f]+)"  # odd events: EPOLLIN among them
_EVENT: Final = struct.Struct("=IQ" if platform.machine() == "x86_64" else "@IQ")  # epoll_event; packed on that one
_MODIFY: Final = 3  # EPOLL_CTL_MOD
_ONE: Final = 0x40000001  # EPOLLIN | EPOLLONESHOT
_PLUG_SECONDS: Final = 5.0  # libzmq's thread may need so long to begin to listen


class AcceptGate:
    """`listener` is the descriptor of a newly bound listener that outlives this object."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._entry = _found(listener)
        self.close()

    def open(self) -> None:
        """Let libzmq accept the next connection, and then none. Raises OSError where the listener is gone."""
        self._report(_ONE)

    def close(self) -> None:
        """Let libzmq accept none; connections wait in the system's queue. Raises OSError where the listener is gone."""
        self._report(0)

    def _report(self, events: int) -> None:
        if self._entry is None:
            return
        epoll, data = self._entry
        if ctypes.CDLL(None, use_errno=True).epoll_ctl(epoll, _MODIFY, self._listener, _EVENT.pack(events, data)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _found(listener: int) -> tuple[int, int] | None:
    """Return the epoll set with a listener, and the entry's data; None where the system does not show it."""
    until = time.monotonic() + _PLUG_SECONDS
    while (sets := _epoll_sets()) and time.monotonic() < until:
        for epoll, entries in sets.items():
            if found := re.search(_ENTRY.format(listener), entries, re.MULTILINE):
                return epoll, int(found[1], 16)
        time.sleep(0.001)
    return None


def _epoll_sets() -> dict[int, str]:
    """Return the system's description of each epoll set of this process, by its descriptor."""
    sets = {}
    for one in os.listdir(_FDINFO) if _FDINFO.exists() else ():
        with suppress(OSError):
            if "tfd:" in (said := (_FDINFO / one).read_text()):
                sets[int(one)] = said
    return sets


MOST_EVENTS: Final = 20_000
MOST_BYTES_OF_EVENTS: Final = 16 * 2**20


class EventRing:
    """`last` is the number of the latest event; the first has 1."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES_OF_EVENTS) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[tuple[int, Event, int]] = deque()
        self._bytes = 0
        self.last = 0

    def add(self, event: Event) -> tuple[int, list[bytes]]:
        """Return the event's number, and its frames for an unfiltered listener. Raises NotEncodable."""
        frames = codec.encode_event(self.last + 1, event)
        self.last += 1
        self._events.append((self.last, event, len(frames[1])))
        self._bytes += len(frames[1])
        while len(self._events) > self._most_events or self._bytes > self._most_bytes:
            self._bytes -= self._events.popleft()[2]
        return self.last, frames

    def after(self, number: int) -> Sequence[tuple[int, Event]] | None:
        """Return the events after that number, each with its own; None where not all of them are kept."""
        missed = self.last - number
        if not 0 <= missed <= len(self._events):
            return None
        return [(number, event) for number, event, _ in list(self._events)[len(self._events) - missed :]]


# The connections to a service, by their descriptors, and how they are closed. Few unknown clients are let in at the
# door, and some descriptors stay free: without one libzmq ends the process at the listener of the private folder
# (4.3.5, `ipc_listener.cpp`: EMFILE is none of the errors it handles). So connections are let in one by one. zmq
# reports its connections by a monitor and has no call to close one; instead its descriptor is shut down, and zmq then
# closes it. Nor does zmq limit a message's frames: it keeps them until the last one has arrived, and reports none
# before. So the system is asked for the received bytes that are in no message (only Linux reports them), and zmq drops
# the frames of a closed connection. Called from the thread of the service.

log = logging.getLogger(__name__)

MOST_STRANGERS: Final = 256
MOST_FREE: Final = 64  # descriptors that new clients leave to files and threads
LEAST: Final = 4
UNFINISHED_BYTES: Final = 8 * MOST_BYTES  # of a message over the door: our clients send no larger pieces
PERSON_UNFINISHED_BYTES: Final = 8 * UNFINISHED_BYTES  # likewise, of all connections of a person, or of all strangers
LOOK_SECONDS: Final = 0.01  # at least between two checks: each asks the system once a connection
CUT_SECONDS: Final = 60.0  # for which messages of a closed connection are dropped; zmq may still have some
NO_DESCRIPTORS: Final = (
    "The engine has no file descriptors left for another notebook or panel: close some, or start it where more files "
    "may be open (`ulimit -n`)."
)
_MONITOR_EVENT: Final = struct.Struct("=hi")
_EVENTS: Final = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_DISCONNECTED
_RECEIVED: Final = struct.Struct("=Q"), 128  # in Linux's `struct tcp_info`: `tcpi_bytes_received`
_OPEN: Final = Path("/dev/fd")


class Connections:
    """`monitor` is readable when zmq has an event. A connection belongs to a known client once `note` has recorded its
    routing id and `knows` accepts that; `key_of` returns its owner."""

    def __init__(
        self, router: zmq.Socket[bytes], knows: Callable[[bytes], bool], key_of: Callable[[bytes], PublicKey]
    ) -> None:
        self._router, self._knows, self._key_of = router, knows, key_of
        self.monitor = _watched(router)
        self._peers: dict[int, bytes | None] = {}  # by descriptor, the oldest first
        self.at_door: set[int] = set()  # of `_peers`, those outside the private folder
        self._gates: dict[str, AcceptGate] = {}  # by the kind of listener
        self._listening: set[str | int] = set()
        self.cut_off: dict[bytes, float] = {}  # since when, by routing id: later reads of them are dropped
        self._finished: dict[int, int] = {}  # bytes of all messages so far, by descriptor
        self._read: Counter[int] = Counter()  # bytes of the messages since the last check
        self.unfinished, self._looked = False, 0.0
        self._limit = limit_now()
        part = _free(self._limit) // 4
        self._most_strangers = max(LEAST, min(MOST_STRANGERS, part))
        self._kept_free = max(LEAST, min(MOST_FREE, part))

    def listen(self, endpoint: str) -> None:
        """Record a newly bound endpoint of the service, whose connections these are."""
        self._listening.add(_local(endpoint))
        self.read_events()

    def read_events(self) -> None:
        """Record connections that begin and end, close the oldest unknown ones where there are too many, and let in the
        next."""
        with suppress(zmq.Again):
            while True:
                told, endpoint = self.monitor.recv_multipart(zmq.NOBLOCK)
                event, descriptor = _MONITOR_EVENT.unpack(told)
                self._note_event(event, descriptor, endpoint.decode().partition(":")[0])
        if len(self.at_door) > self._most_strangers:
            self._close_strangers()
        self._let_in()

    def _note_event(self, event: int, descriptor: int, kind: str) -> None:
        if event == zmq.EVENT_LISTENING:
            self._gates[kind] = AcceptGate(descriptor)
        elif event != zmq.EVENT_ACCEPT_FAILED:
            self._forget(descriptor)
        if event == zmq.EVENT_ACCEPTED:
            self._peers[descriptor] = None
            if kind != "ipc":
                self.at_door.add(descriptor)

    def _let_in(self) -> None:
        """Accept one more connection at each listener, where the descriptors suffice: this user's clients need fewer,
        and get an error where they are few."""
        free = _free(self._limit)
        for kind, gate in self._gates.items():
            if free > (self._kept_free // 4 if kind == "ipc" else 2 * self._kept_free):
                gate.open()
            else:
                gate.close()

    def note(self, sender: zmq.Frame, size: int) -> None:
        """Record the routing id of a connection, from a message's first frame, and the message's size."""
        descriptor = int(sender.get(zmq.SRCFD))
        if descriptor in self._peers:  # in place of an earlier one's, whose last message was read late
            self._peers[descriptor] = sender.bytes
            self._read[descriptor] += size

    def require_room(self) -> None:
        """Raise EngineError where the descriptors do not suffice for another client."""
        if _free(self._limit) < self._kept_free:
            raise EngineError(NO_DESCRIPTORS)

    def cut(self, peer: bytes) -> None:
        """Close the connection with a routing id; later reads of it are to be dropped (`cut_off`)."""
        self.cut_off[peer] = time.monotonic()
        for descriptor in [one for one, its in self._peers.items() if its == peer]:
            self._shut(descriptor)

    def sweep(self) -> None:
        """Drop the connections that were closed long ago, and let in the next ones."""
        self._let_in()
        self.cut_off = {peer: at for peer, at in self.cut_off.items() if time.monotonic() - at < CUT_SECONDS}

    def look(self) -> None:
        """Close the connections at the door that send more than UNFINISHED_BYTES of one message, and the largest one of
        a person with more than PERSON_UNFINISHED_BYTES. `unfinished` is True afterwards where a message is arriving.
        Call this when all of zmq's messages are read."""
        now = time.monotonic()
        early = now - self._looked < LOOK_SECONDS
        if not self.at_door or early or int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return
        self._looked = now
        coming = {one: self._coming(one) for one in self.at_door}
        self._read.clear()
        self.unfinished = max(coming.values()) > WHOLE_BYTES
        persons: dict[PublicKey | None, dict[int, int]] = {}
        for one, count in coming.items() if self.unfinished else ():
            persons.setdefault(self._person(one), {})[one] = count
        for theirs in persons.values():
            largest = max(theirs, key=theirs.__getitem__)
            if theirs[largest] > UNFINISHED_BYTES or sum(theirs.values()) > PERSON_UNFINISHED_BYTES:
                log.warning("A connection is closed: it sends a message that does not end")
                self._shut(largest)

    def _coming(self, descriptor: int) -> int:
        """Return the received bytes of a connection that are in no message yet, except a few of zmq's own."""
        received, finished = _bytes_received(descriptor), self._finished.get(descriptor, 0)
        if descriptor in self._read:
            finished = min(received, finished + self._read[descriptor])
            self._finished[descriptor] = finished = received if received - finished <= WHOLE_BYTES else finished
        return received - finished

    def _person(self, descriptor: int) -> PublicKey | None:
        """Return the key of a connection's person, None for a stranger."""
        peer = self._peers[descriptor]
        return self._key_of(peer) if peer is not None and self._knows(peer) else None

    def close(self) -> None:
        """Stop reading; called before the router is closed, which would wait for the monitor."""
        if not self._router.closed:
            self._router.disable_monitor()
        self.monitor.close(linger=0)

    def _close_strangers(self) -> None:
        strangers = [one for one in self._peers if one in self.at_door and self._person(one) is None]
        for descriptor in strangers[: -self._most_strangers]:
            self._shut(descriptor)

    def _forget(self, descriptor: int) -> None:
        self.at_door.discard(descriptor)
        self._finished.pop(descriptor, None)
        self._read.pop(descriptor, None)
        self._peers.pop(descriptor, None)

    def _shut(self, descriptor: int) -> None:
        """Shut a connection down, if its descriptor still belongs to this service: zmq may have closed it meanwhile."""
        self._forget(descriptor)
        with suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                if _local_of(connection) in self._listening:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()


def draw_unforeseen_ids() -> None:
    """Make the next ROUTER count its routing ids up from a secret number. libzmq draws it by the C library's `rand`,
    which gives the same in each process, and where a client has taken the id of another, it ends the process (4.3.5,
    `socket_base.cpp`, `add_out_pipe`)."""
    ctypes.CDLL(None).srand(secrets.randbits(32))


def _watched(router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return the socket with events on a router's connections. It accepts any number of events: zmq would wait for
    it."""
    endpoint = f"inproc://connections-{id(router)}"
    router.monitor(endpoint, _EVENTS)
    monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(endpoint)
    return monitor


def _free(limit: int) -> int:
    """Return the number of files that may still be opened, 0 where not even the list of open ones can be."""
    try:
        return limit - len(os.listdir(_OPEN))
    except OSError:
        return 0


def _bytes_received(descriptor: int) -> int:
    """Return the bytes received on a connection, 0 where the system does not report it."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            read, at = _RECEIVED
            return int(*read.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), at))
        except struct.error:  # an older system, which reports less
            return 0
        finally:
            connection.detach()
    return 0


def _local(endpoint: str) -> str | int:
    """Return what distinguishes a listener's connections from others: a path, or a port."""
    kind, _, address = endpoint.partition("://")
    return address if kind == "ipc" else int(address.rpartition(":")[2])


def _local_of(connection: socket.socket) -> str | int:
    found = connection.getsockname()
    return str(found) if connection.family == socket.AF_UNIX else int(found[1])
