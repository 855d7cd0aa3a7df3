"""What ends a libzmq socket by its own assertions, played against an engine's process: a connection that breaks while
its requests wait to be read, under pings; routing ids that are foreseen; and descriptors that strangers take."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq

import djinn_jupyter as dj
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.engine.connections import NO_DESCRIPTORS
from djinn_jupyter.remote.handshake import set_keys
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Failed, Welcome
from tests.process.conftest import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("fake_site", "keys"), pytest.mark.processes]
COSTLY = ask.Tokenize(text="one that fails inside, which takes the fake engine longer than to read it")
FIRST_DRAWN = 0xE43C9869  # by glibc, in an engine
BEAT_SECONDS = 4.9  # behind the handshake: shortly before the first heartbeat of an engine that has some


@contextmanager
def engine_with(*, files: int = 4096) -> Iterator[tuple[subprocess.Popen[bytes], Entry]]:
    """Start an engine by hand, on TCP, which may have so many files open."""
    run = f"ulimit -n {files}; exec {sys.executable} -m djinn_jupyter.engine --model fake --listen tcp://127.0.0.1:*"
    with tempfile.TemporaryFile() as log:  # a pipe that no one reads would hold the engine up
        process = subprocess.Popen(["bash", "-c", run], cwd=ROOT, stderr=log)
        until(lambda: running_engines() or process.poll() is not None, "its entry")
        try:
            yield process, running_engines()[0]
        finally:
            process.terminate()
            process.wait(120)


class Rude:
    """A person's client that sends as much as the engine's side takes, and reads nothing."""

    def __init__(self, context: zmq.Context[Any], listens: str, **options: int) -> None:
        entry = entry_at(read_address(listens), "ada")
        self._socket = context.socket(zmq.DEALER)
        set_keys(self._socket, entry)
        for name, value in {"LINGER": 0, "SNDHWM": 1, "RCVHWM": 1, "HEARTBEAT_IVL": 0, **options}.items():
            self._socket.setsockopt(getattr(zmq, name), value)
        self._socket.connect(entry.commands)

    def send(self, request: ask.Request, until: float = 0.0) -> None:
        """Send a request once, then again and again until that moment of the monotonic clock."""
        frames = codec.encode(1, request)
        self._socket.send_multipart(frames)
        while time.monotonic() < until:
            if self._socket.poll(10, zmq.POLLOUT):
                self._socket.send_multipart(frames)

    def answered(self) -> None:
        assert self._socket.poll(120_000)  # behind all that it has sent before
        self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close()


HELLO = protocol.hello(holder="rude", user="ada")


def floods_and_goes(context: zmq.Context[Any], listens: str) -> None:
    rude = Rude(context, listens)
    rude.send(HELLO)
    rude.answered()
    rude.send(COSTLY, time.monotonic() + BEAT_SECONDS)
    rude.close()


def floods_under_its_own_pings(context: zmq.Context[Any], listens: str) -> None:
    rude = Rude(context, listens, HEARTBEAT_IVL=1, HEARTBEAT_TIMEOUT=60_000, RCVHWM=0)
    rude.send(HELLO)
    rude.answered()
    rude.send(COSTLY, time.monotonic() + 1.0)
    rude.close()


def takes_the_ids_that_are_drawn_next(context: zmq.Context[Any], listens: str) -> None:
    """Have connections under the routing ids that libzmq would give to those that come without one. It counts them up
    from a number that it draws by the C library, which draws the same in each process."""
    entry = entry_at(read_address(listens), "ada")
    with ExitStack() as clients:
        for number in (*range(FIRST_DRAWN, FIRST_DRAWN + 40), *[None] * 3):
            client = clients.enter_context(context.socket(zmq.DEALER))
            client.setsockopt(zmq.LINGER, 0)
            set_keys(client, entry)
            if number is not None:
                client.setsockopt(zmq.ROUTING_ID, b"\0" + number.to_bytes(4, "big"))
            client.connect(entry.commands)
            client.send_multipart(codec.encode(1, HELLO))
            client.poll(20_000 if number is None else 100)  # the engine has read it, or another has that id


PLAYS = [floods_and_goes, floods_under_its_own_pings, takes_the_ids_that_are_drawn_next]


def _played(play: Callable[[zmq.Context[Any], str], None], times: int) -> None:
    with engine_with() as (process, entry), zmq.Context() as context:
        neighbour = dj.load("fake").session("paris")
        for _ in range(times):
            play(context, entry.listens)
            assert neighbour.run([1], max_new_tokens=2).tokens == (1, 2)
        assert process.poll() is None
        assert running_engines() == (entry,)


@pytest.mark.parametrize("play", PLAYS)
def test_a_connection_that_breaks_under_unread_requests_ends_no_engine(play: Any) -> None:
    _played(play, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("play", PLAYS)
def test_twenty_connections_that_break_under_unread_requests_end_no_engine(play: Any) -> None:
    _played(play, 20)


def test_neither_strangers_nor_local_clients_take_the_last_descriptors() -> None:
    files = 80
    with engine_with(files=files) as (process, entry), zmq.Context() as context, ExitStack() as strangers:
        neighbour = dj.load("fake").session("paris")
        host, _, port = (entry.listens or "").removeprefix("tcp://").rpartition(":")
        local: list[zmq.Socket[Any]] = []
        for number in range(2 * files):
            strangers.enter_context(socket.create_connection((host, int(port)), timeout=120))
            if number % 2:
                local.append(context.socket(zmq.DEALER))
                local[-1].setsockopt(zmq.LINGER, 0)
                local[-1].setsockopt(zmq.RCVTIMEO, 120_000)
                local[-1].connect(entry.commands)
                local[-1].send_multipart(codec.encode(1, protocol.hello(holder=f"{number}", user="root")))
                answer = codec.decode_reply(local[-1].recv_multipart()).body
                assert isinstance(answer, Welcome) or answer == Failed(code="EngineError", message=NO_DESCRIPTORS)
                if isinstance(answer, Failed):
                    break
        else:
            raise AssertionError("none was refused")
        for _ in range(3):
            assert neighbour.run([1], max_new_tokens=2).tokens == (1, 2)
        assert process.poll() is None
        assert running_engines() == (entry,)
        for one in local:
            one.close()


BURST = """
import socket, sys, time
strangers = [socket.socket() for _ in range(int(sys.argv[2]))]
for one in strangers:
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
time.sleep(1.0)
"""


def _bursts(times: int) -> None:
    """Five thousand connect at once, again and again, while local clients come and go."""
    with engine_with(files=200) as (process, entry), zmq.Context() as context:
        neighbour = dj.load("fake").session("paris")
        port, served = (entry.listens or "").rpartition(":")[2], 0
        for _ in range(times):
            with subprocess.Popen([sys.executable, "-S", "-c", BURST, port, "5000"]) as burst:
                while burst.poll() is None:
                    with context.socket(zmq.DEALER) as local:
                        local.setsockopt(zmq.LINGER, 0)
                        local.connect(entry.commands)
                        local.send_multipart(codec.encode(1, protocol.hello(holder="kernel", user="root")))
                        assert local.poll(120_000), "it has ended"
                        assert isinstance(codec.decode_reply(local.recv_multipart()).body, Welcome)
                        served += 1
            assert neighbour.run([1], max_new_tokens=2).tokens == (1, 2)
        assert served >= times
        assert process.poll() is None
        assert running_engines() == (entry,)


def test_five_thousand_strangers_at_once_end_no_engine_and_keep_no_local_client_out() -> None:
    _bursts(2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_bursts_of_strangers_end_no_engine_and_keep_no_local_client_out() -> None:
    _bursts(20)


def test_a_process_takes_as_many_descriptors_as_it_may() -> None:
    ask = "import resource; from djinn_jupyter.engine.system.process import allow_all; "
    ask += "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 300)); print(allow_all())"
    assert subprocess.check_output([sys.executable, "-c", ask], cwd=ROOT, text=True).strip() == "300"
