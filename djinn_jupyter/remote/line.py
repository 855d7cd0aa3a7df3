"""One connection to an engine: a socket from its connecting until it is lost. Knows no messages."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import zmq

from djinn_jupyter.link.io_thread import Take, ZmqStream
from djinn_jupyter.remote.handshake import WATCHED, Handshake, set_keys
from djinn_jupyter.wire.registry import Entry

NEVER_MILLISECONDS: Final = 24 * 3600 * 1000
"""zmq does not connect again once a connection was lost; -1 would drop messages received but not yet read then."""
AGAIN_MILLISECONDS: Final = 200
CONNECT_MILLISECONDS: Final = 2000  # the system's own attempts come after 1, 3, 7, 15 s


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A context terminated only by its connection. If that was not closed, zmq's own finalizer would make the garbage
    collector wait for sockets that the same collection closes later."""

    def __del__(self) -> None:
        pass


class SocketLine:
    """`take` gets the frames of each message. `handshake.over` is set when the connection is closed or refused. A
    `patient` connection keeps trying where nothing listens."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], entry: Entry, take: Take, *, patient: bool) -> None:
        self.handshake = Handshake(entry, patient=patient)
        self._socket = _socket(context, AGAIN_MILLISECONDS if patient else NEVER_MILLISECONDS)
        try:
            if entry.has_keys:
                set_keys(self._socket, entry)
            monitor = self._socket.get_monitor_socket(WATCHED)  # first: zmq drops events without a listener
            self._socket.connect(entry.commands)
        except BaseException:
            self._socket.disable_monitor()
            self._socket.close()  # else its context would wait for it for ever
            raise
        self._stream = ZmqStream(self._socket, take)
        self._monitor = ZmqStream(monitor, self.handshake.note)

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Raises zmq.Again where the engine has refused the keys and closed its end."""
        self._stream.send(frames)

    def close(self) -> None:
        """Close the socket; `take` is not called again. A second call does nothing."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()  # first: zmq would block for ever on a monitor socket that is no longer read
        self._monitor.close()
        self._stream.close()


def _socket(context: zmq.Context[zmq.Socket[bytes]], again: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, b"djinn" + secrets.token_bytes(16))  # the engine's drawn ids can be guessed
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, again)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MILLISECONDS)
    return socket
