"""The cheapest round trips between two processes over the same kind of socket: the baselines of a request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq
import zmq.asyncio

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
SERVER_OF_TWO_THREADS = """
import queue, socket, sys, threading, zmq
asked, answered = queue.SimpleQueue(), queue.SimpleQueue()
reader, writer = socket.socketpair()
def answer():
    while True:
        answered.put(asked.get())
        writer.send(b"1")
threading.Thread(target=answer, daemon=True).start()
router, poller = zmq.Context().socket(zmq.ROUTER), zmq.Poller()
router.bind(sys.argv[1])
poller.register(router, zmq.POLLIN)
poller.register(reader, zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if router in ready:
        asked.put(router.recv_multipart())
    if reader.fileno() in ready:
        reader.recv(64)
        router.send_multipart(answered.get())
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


@contextmanager
def echo_between_threads() -> Iterator[Callable[[], object]]:
    """A call that wakes as many threads as a request does, two here and two in another process, with the same means."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with tempfile.TemporaryDirectory() as folder, zmq.asyncio.Context() as context:
        endpoint = f"ipc://{folder}/echo"
        with subprocess.Popen([sys.executable, "-c", SERVER_OF_TWO_THREADS, endpoint]) as server:

            async def connect() -> zmq.asyncio.Socket:
                dealer = context.socket(zmq.DEALER)
                dealer.connect(endpoint)
                return dealer

            async def ask() -> object:
                await dealer.send(b"a few bytes")
                return await dealer.recv()

            dealer = asyncio.run_coroutine_threadsafe(connect(), loop).result()
            try:
                yield lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result()
            finally:
                loop.call_soon_threadsafe(dealer.close)
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()
                server.kill()
