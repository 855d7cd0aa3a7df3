"""The connections to a service, by their descriptors, and the end of those that have to go. Unknown clients of the door
are few, and some descriptors stay free: without one libzmq ends the process at the listener of the private folder
(4.3.5, `ipc_listener.cpp`: EMFILE is none of the errors it takes). So each connection is let in by itself.

zmq tells of its connections by a monitor and has no call to close one; its descriptor is shut down in its place, and
zmq closes it then. Nor has it a bound of a message's frames: it keeps them until the last one is there, and tells of
none before. So the system is asked how much came that is in no message (Linux alone tells), and zmq drops the frames
of one that is closed. Called from the thread of the service.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import zmq

from djinn_jupyter.engine.process.accept_gate import AcceptGate
from djinn_jupyter.engine.system.descriptors import limit_now
from djinn_jupyter.errors import EngineError
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.pieces import MOST_BYTES, WHOLE_BYTES

log = logging.getLogger(__name__)

MOST_STRANGERS: Final = 256
MOST_FREE: Final = 64  # descriptors that new clients leave to files and threads
LEAST: Final = 4
UNFINISHED_BYTES: Final = 8 * MOST_BYTES  # of a message over the door: our clients send no larger pieces than one
PERSON_UNFINISHED_BYTES: Final = 8 * UNFINISHED_BYTES  # likewise, of all connections of a person, or of all strangers
LOOK_SECONDS: Final = 0.01  # at least between two looks: each asks the system once a connection
CUT_SECONDS: Final = 60.0  # for which messages of a connection that was closed are dropped; zmq may still have some
NO_DESCRIPTORS: Final = (
    "The engine has no file descriptors left for another notebook or panel: close some, or start it where more files "
    "may be open (`ulimit -n`)."
)
_EVENT: Final = struct.Struct("=hi")
_EVENTS: Final = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_DISCONNECTED
_RECEIVED: Final = struct.Struct("=Q"), 128  # in Linux's `struct tcp_info`: `tcpi_bytes_received`
_OPEN: Final = Path("/dev/fd")


class Connections:
    """`monitor` is readable where zmq tells something. A connection is of a known client once `note` has said by which
    routing id it speaks and `knows` says yes to that; `key_of` says whose it is."""

    def __init__(
        self, router: zmq.Socket[bytes], knows: Callable[[bytes], bool], key_of: Callable[[bytes], PublicKey]
    ) -> None:
        self._router, self._knows, self._key_of = router, knows, key_of
        self.monitor = _watched(router)
        self._peers: dict[int, bytes | None] = {}  # by descriptor, the oldest first
        self._descriptors: dict[bytes, int] = {}
        self._at_door: set[int] = set()  # of `_peers`, those that do not come over the private folder
        self._gates: dict[str, AcceptGate] = {}  # by the kind of listener
        self._listening: set[str | int] = set()
        self._cut: dict[bytes, float] = {}
        self._finished: dict[int, int] = {}  # bytes of all messages so far, by descriptor
        self._read: Counter[int] = Counter()  # bytes of the messages since the last look
        self.unfinished, self._looked = False, 0.0
        self._limit = limit_now()
        part = _free(self._limit) // 4
        self._most_strangers = max(LEAST, min(MOST_STRANGERS, part))
        self._kept_free = max(LEAST, min(MOST_FREE, part))

    def listen(self, endpoint: str) -> None:
        """Note an endpoint of the service that was bound just now, whose connections these are."""
        self._listening.add(_local(endpoint))
        self.read_events()

    def read_events(self) -> None:
        """Note the connections that have begun and ended, close the oldest strangers where there are too many, and let
        in the next."""
        with suppress(zmq.Again):
            while True:
                told, endpoint = self.monitor.recv_multipart(zmq.NOBLOCK)
                event, descriptor = _EVENT.unpack(told)
                self._note_event(event, descriptor, endpoint.decode().partition(":")[0])
        if len(self._at_door) > self._most_strangers:
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
                self._at_door.add(descriptor)

    def _let_in(self) -> None:
        """Accept one connection more at each listener, where the descriptors suffice: this user's clients need fewer,
        and are told where they are few."""
        free = _free(self._limit)
        for kind, gate in self._gates.items():
            if free > (self._kept_free // 4 if kind == "ipc" else 2 * self._kept_free):
                gate.open()
            else:
                gate.close()

    def note(self, sender: zmq.Frame, size: int) -> None:
        """Note by which routing id a connection speaks, from the first frame of a message that came on it, of which so
        many bytes were read."""
        peer = sender.bytes
        if peer not in self._descriptors:
            descriptor = int(sender.get(zmq.SRCFD))
            if descriptor in self._peers:
                before, self._peers[descriptor], self._descriptors[peer] = self._peers[descriptor], peer, descriptor
                if before is not None:  # one that had this descriptor earlier, whose last message was read late
                    self._descriptors.pop(before, None)
        if peer in self._descriptors:
            self._read[self._descriptors[peer]] += size

    def require_room(self) -> None:
        """Raise EngineError where the descriptors do not suffice for another client."""
        if _free(self._limit) < self._kept_free:
            raise EngineError(NO_DESCRIPTORS)

    def cut(self, peer: bytes) -> None:
        """Close the connection that speaks by a routing id; what is still read of it is to be dropped (`is_cut`)."""
        self._cut[peer] = time.monotonic()
        if peer in self._descriptors:
            self._shut(self._descriptors[peer])

    def is_cut(self, peer: bytes) -> bool:
        return peer in self._cut

    def sweep(self) -> None:
        """Forget the connections that were closed long ago, and let in the next ones."""
        self._let_in()
        self._cut = {peer: at for peer, at in self._cut.items() if time.monotonic() - at < CUT_SECONDS}

    def look(self) -> None:
        """Close the connections at the door that send more than UNFINISHED_BYTES of one message, and the largest of a
        person whose messages are more than PERSON_UNFINISHED_BYTES. `unfinished` is True afterwards where some is
        coming. To be called where all that zmq has is read."""
        now = time.monotonic()
        early = now - self._looked < LOOK_SECONDS
        if not self._at_door or early or int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return
        self._looked = now
        coming = {one: self._coming(one) for one in self._at_door}
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
        """Return the bytes that came on a connection and are in none of its messages, but for a few, which are zmq's
        own."""
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
        """Read no more; called before the router is closed, which would wait for the monitor."""
        if not self._router.closed:
            self._router.disable_monitor()
        self.monitor.close(linger=0)

    def _close_strangers(self) -> None:
        strangers = [one for one in self._peers if one in self._at_door and self._person(one) is None]
        for descriptor in strangers[: -self._most_strangers]:
            self._shut(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._at_door.discard(descriptor)
        self._finished.pop(descriptor, None)
        self._read.pop(descriptor, None)
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            self._descriptors.pop(peer, None)

    def _shut(self, descriptor: int) -> None:
        """Shut a connection down, if the descriptor still is one of this service: zmq may have closed it meanwhile."""
        self._forget(descriptor)
        with suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                if _local_of(connection) in self._listening:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()


def draw_unforeseen_ids() -> None:
    """Have the next ROUTER count its routing ids up from a number that no one knows. libzmq draws it by the C library's
    `rand`, which draws the same in each process, and where a client has taken the id that another is to get, it ends
    the process (4.3.5, `socket_base.cpp`, `add_out_pipe`)."""
    ctypes.CDLL(None).srand(secrets.randbits(32))


def _watched(router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return the socket that tells of a router's connections. It takes any number of events: zmq would wait for it."""
    endpoint = f"inproc://connections-{id(router)}"
    router.monitor(endpoint, _EVENTS)
    monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(endpoint)
    return monitor


def _free(limit: int) -> int:
    """Return the number of files that may still be opened, 0 where not even the list of the open ones can be."""
    try:
        return limit - len(os.listdir(_OPEN))
    except OSError:
        return 0


def _bytes_received(descriptor: int) -> int:
    """Return the bytes that came on a connection, 0 where the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            read, at = _RECEIVED
            return int(*read.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), at))
        except struct.error:  # an older system, which tells less
            return 0
        finally:
            connection.detach()
    return 0


def _local(endpoint: str) -> str | int:
    """Return what tells a listener's connections from others: a path, or a port."""
    kind, _, address = endpoint.partition("://")
    return address if kind == "ipc" else int(address.rpartition(":")[2])


def _local_of(connection: socket.socket) -> str | int:
    found = connection.getsockname()
    return str(found) if connection.family == socket.AF_UNIX else int(found[1])
