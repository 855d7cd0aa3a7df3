"""The connections to a service, by their descriptors, and the end of those that have to go. Unknown clients are few,
and some descriptors stay free: without one libzmq ends the process at the listener of the private folder.

zmq tells of its connections by a monitor and has no call to close one; its descriptor is shut down in its place, and
zmq closes it then. Called from the thread of the service.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import zmq

from djinn_jupyter.errors import EngineError

MOST_STRANGERS: Final = 256
MOST_FREE: Final = 64  # descriptors that new clients leave to files and threads
LEAST: Final = 4
CUT_SECONDS: Final = 60.0  # for which messages of a connection that was closed are dropped; zmq may still have some
NO_DESCRIPTORS: Final = (
    "The engine has no file descriptors left for another notebook or panel: close some, or start it where more files "
    "may be open (`ulimit -n`)."
)
_EVENT: Final = struct.Struct("=hi")
_OPEN: Final = Path("/dev/fd")


class Connections:
    """`monitor` is readable where zmq tells something. A connection is of a known client once `note` has said by which
    routing id it speaks and `knows` says yes to that."""

    def __init__(self, router: zmq.Socket[bytes], knows: Callable[[bytes], bool]) -> None:
        self._router, self._knows = router, knows
        self.monitor = _watched(router)
        self._peers: dict[int, bytes | None] = {}  # by descriptor, the oldest first
        self._descriptors: dict[bytes, int] = {}
        self._listening: set[str | int] = set()
        self._cut: dict[bytes, float] = {}
        self._limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        part = _free(self._limit) // 4
        self._most_strangers = max(LEAST, min(MOST_STRANGERS, part))
        self._kept_free = max(LEAST, min(MOST_FREE, part))

    def listen(self, endpoint: str) -> None:
        """Note an endpoint of the service, whose connections these are."""
        self._listening.add(_local(endpoint))

    def read_events(self) -> None:
        """Note the connections that have begun and ended, and close the oldest strangers where there are too many."""
        with suppress(zmq.Again):
            while True:
                event, descriptor = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._forget(descriptor)
                if event == zmq.EVENT_ACCEPTED:
                    self._peers[descriptor] = None
        if len(self._peers) > self._most_strangers:
            self._close_strangers()

    def note(self, sender: zmq.Frame) -> None:
        """Note by which routing id a connection speaks, from the first frame of a message that came on it."""
        peer = sender.bytes
        if peer not in self._descriptors:
            descriptor = int(sender.get(zmq.SRCFD))
            if descriptor in self._peers:
                before, self._peers[descriptor], self._descriptors[peer] = self._peers[descriptor], peer, descriptor
                if before is not None:  # one that had this descriptor earlier, whose last message was read late
                    self._descriptors.pop(before, None)

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
        """Forget the connections that were closed long ago."""
        self._cut = {peer: at for peer, at in self._cut.items() if time.monotonic() - at < CUT_SECONDS}

    def close(self) -> None:
        """Read no more; called before the router is closed, which would wait for the monitor."""
        if not self._router.closed:
            self._router.disable_monitor()
        self.monitor.close(linger=0)

    def _close_strangers(self) -> None:
        strangers = [one for one, peer in self._peers.items() if peer is None or not self._knows(peer)]
        for descriptor in strangers[: -self._most_strangers]:
            self._shut(descriptor)

    def _forget(self, descriptor: int) -> None:
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


def _watched(router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return the socket that tells of a router's connections. It takes any number of events: zmq would wait for it."""
    endpoint = f"inproc://connections-{id(router)}"
    router.monitor(endpoint, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
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


def _local(endpoint: str) -> str | int:
    """Return what tells a listener's connections from others: a path, or a port."""
    kind, _, address = endpoint.partition("://")
    return address if kind == "ipc" else int(address.rpartition(":")[2])


def _local_of(connection: socket.socket) -> str | int:
    found = connection.getsockname()
    return str(found) if connection.family == socket.AF_UNIX else int(found[1])
