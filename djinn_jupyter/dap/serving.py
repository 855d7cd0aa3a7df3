"""Serve the adapter on a pair of pipes, or on a loopback port with one adapter per client. Reads and writes bytes; a
client that does not read delays only itself."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from djinn_jupyter.dap.adapter import Adapter
from djinn_jupyter.dap.framing import Unframer, encode
from djinn_jupyter.errors import WireError

log = logging.getLogger(__name__)

Read = Callable[[], bytes]
Write = Callable[[bytes], object]
Receive = Callable[[dict[str, Any]], None]
READ_BYTES = 65536


def serve_client(read: Read, write: Write) -> None:
    """Serve one client until it leaves or its pipe ends. `read` returns b"" at the end."""
    outgoing: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    adapter = Adapter(outgoing.put)
    reading = (read, adapter.receive, adapter.remark, adapter.end)
    writer = threading.Thread(target=_write_all, args=(outgoing, write), name="djinn-dap-write", daemon=True)
    reader = threading.Thread(target=_read_all, args=reading, name="djinn-dap-read", daemon=True)
    writer.start()
    reader.start()
    adapter.run()
    outgoing.put(None)
    writer.join(5.0)


def _read_all(read: Read, receive: Receive, remark: Callable[[str], None], end: Callable[[], None]) -> None:
    """Hand on every message of a client, until its pipe ends; `remark` is told of bytes that are none."""
    unframer = Unframer()
    try:
        while more := read():
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


def serve_port(port: int, told: Callable[[int], None]) -> None:
    """Serve on a loopback port; every connection is a separate client. `told` is called with the port, which the system
    chooses when `port` is 0. Ends by KeyboardInterrupt."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        told(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_serve_connection, args=(connection,), name="djinn-dap", daemon=True).start()


def _serve_connection(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve_client(lambda: connection.recv(READ_BYTES), connection.sendall)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client has closed it
