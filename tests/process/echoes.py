"""The cheapest round trip between two processes over the same kind of socket: the baseline of a request."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

SERVER = """
import sys, zmq
socket = zmq.Context().socket(zmq.REP)
socket.bind(sys.argv[1])
while (message := socket.recv()) != b"end":
    socket.send(message)
"""


@contextmanager
def echo() -> Iterator[Callable[[], object]]:
    """A call that sends a few bytes to another process and waits until they come back."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.REQ) as socket:
        endpoint = f"ipc://{folder}/echo"
        server = subprocess.Popen([sys.executable, "-c", SERVER, endpoint])
        socket.connect(endpoint)

        def ask() -> object:
            socket.send(b"a few bytes")
            return socket.recv()

        ask()
        try:
            yield ask
        finally:
            socket.send(b"end")
            server.wait()
