"""The cheapest round trip between two processes over the same kind of socket: the baseline of a request."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

COMPUTE, REST = b"compute", b"rest"
SERVER = """
import sys, threading, zmq
computing = threading.Event()
def compute():
    while computing.wait():
        sum(number for number in range(300))
threading.Thread(target=compute, daemon=True).start()
socket = zmq.Context().socket(zmq.REP)
socket.bind(sys.argv[1])
while (message := socket.recv()) != b"end":
    if message == b"compute":
        computing.set()
    elif message == b"rest":
        computing.clear()
    socket.send(message)
"""


@contextmanager
def echo() -> Iterator[Callable[..., object]]:
    """A call that sends a few bytes to another process and waits until they come back. Between COMPUTE and REST that
    process computes in a thread, as an engine does."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.REQ) as socket:
        endpoint = f"ipc://{folder}/echo"
        server = subprocess.Popen([sys.executable, "-c", SERVER, endpoint])
        socket.connect(endpoint)

        def ask(message: bytes = b"a few bytes") -> object:
            socket.send(message)
            return socket.recv()

        ask()
        try:
            yield ask
        finally:
            socket.send(b"end")
            server.wait()
