"""Serve the adapter on a pair of pipes, or on a loopback port with one adapter per client. Reads and writes bytes; a
client that does not read delays only itself. A connection to the port ends at its first invalid bytes, after
OPENING_SECONDS without the token, or when newer ones need its place."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.port_access import OPENING_BYTES, PortAccess
from djinn_jupyter.editors.dap.protocol import MESSAGE_BYTES, Unframer, encode
from djinn_jupyter.errors import WireError

log = logging.getLogger(__name__)

Read = Callable[[], bytes]
Write = Callable[[bytes], object]
Receive = Callable[[dict[str, Any]], None]
READ_BYTES = 65536
END_SECONDS: Final = 5.0  # for what is still to be written
OPENING_SECONDS: Final = 60.0  # within which a client on a port shows the token
MOST_OPENING: Final = 16  # connections without it; the oldest makes room for the next


def serve_client(read: Read, write: Write, access: PortAccess | None = None) -> None:
    """Serve one client until it leaves or its pipe ends. `read` returns b"" at the end."""
    outgoing: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    adapter = Adapter(outgoing.put, access=access)
    reading = (read, adapter.receive, adapter.remark, adapter.end, access)
    writer = threading.Thread(target=_write_all, args=(outgoing, write), name="djinn-dap-write", daemon=True)
    reader = threading.Thread(target=_read_all, args=reading, name="djinn-dap-read", daemon=True)
    writer.start()
    reader.start()
    adapter.run()
    outgoing.put(None)
    writer.join(END_SECONDS)


def _read_all(
    read: Read, receive: Receive, remark: Callable[[str], None], end: Callable[[], None], access: PortAccess | None
) -> None:
    """Process every message of a client, until its pipe ends; `remark` is called for invalid bytes."""
    unframer = Unframer()
    try:
        while more := read():
            unframer.most = MESSAGE_BYTES if access is None or access.admitted else OPENING_BYTES
            unframer.feed(more)
            _hand_on(unframer, receive, remark)
            if unframer.lost:
                break
    except OSError as error:
        log.info("The client's pipe broke: %s", error)
    finally:
        end()


def _hand_on(unframer: Unframer, receive: Receive, remark: Callable[[str], None]) -> None:
    while True:
        try:
            message = unframer.take()
        except WireError as error:
            remark(f"{error}\n")
            if unframer.lost:
                return
            continue
        if message is None:
            return
        receive(message)


def _write_all(outgoing: SimpleQueue[dict[str, Any] | None], write: Write) -> None:
    while (message := outgoing.get()) is not None:
        try:
            write(encode(message))
        except OSError as error:
            log.info("The client does not read any more: %s", error)
            return


def serve_pipes() -> None:
    """Serve on standard input and output; all other output of the process is redirected to standard error."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(outgoing, data) :]

    serve_client(lambda: os.read(incoming, READ_BYTES), write)


def serve_port(port: int, told: Callable[[int, str], None], opening_seconds: float = OPENING_SECONDS) -> None:
    """Serve on a loopback port; every connection is a separate client. `told` is called with the port, which the system
    chooses when `port` is 0, and with the token that clients have to show. Ends by KeyboardInterrupt."""
    token = secrets.token_urlsafe()
    served: list[tuple[threading.Thread, PortAccess, socket.socket]] = []
    with socket.create_server(("127.0.0.1", port)) as listening:
        told(listening.getsockname()[1], token)
        while True:
            connection, _ = listening.accept()
            served = [one for one in served if one[0].is_alive()]
            opening = [one for one in served if not one[1].admitted]
            for ending, _, oldest in opening[: 1 - MOST_OPENING]:
                _end(oldest)
                ending.join(END_SECONDS)
            access = PortAccess(token)
            given = (connection, access, opening_seconds)
            thread = threading.Thread(target=_serve_connection, args=given, name="djinn-dap", daemon=True)
            thread.start()
            served.append((thread, access, connection))


def _serve_connection(connection: socket.socket, access: PortAccess, opening_seconds: float) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        late = threading.Timer(opening_seconds, _end_without_token, (connection, access))
        late.daemon = True
        late.start()
        serve_client(lambda: connection.recv(READ_BYTES), connection.sendall, access)
        late.cancel()
        _end(connection)


def _end_without_token(connection: socket.socket, access: PortAccess) -> None:
    if not access.admitted:
        _end(connection)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the client has closed it
