"""Every door that listens, tried with every other door's protocol: none lets anything in, none ends, and each serves
its own client afterwards. The doors are real ones in this process; the adapter's port has tests of its own too
(dap/test_bad_input.py), and the sidebar's gateway (server/test_auth.py)."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry
from tornado.httpserver import HTTPServer

from djinn_jupyter.editors.dap.protocol import encode
from djinn_jupyter.engine.process import metrics
from djinn_jupyter.engine.process.metrics import VISITORS, start_page
from djinn_jupyter.remote.addresses import key_folder, of_engines_here
from djinn_jupyter.remote.hub import Hub, Loans, TokenExchange, listen
from djinn_jupyter.wire.replies import Pong
from djinn_jupyter.wire.requests import Ping
from tests.dap.conftest import served as adapters
from tests.process.admitted import admitted, opened
from tests.process.served import served
from tests.process.test_hub import port_of
from tests.waiting import SECONDS, until

CROWD = 300
MOST_AT_ONE_DOOR = 270  # of the door's side, with its own client
LAUNCH = encode({"seq": 1, "type": "request", "command": "launch", "arguments": {"model": "demo", "prompt": "x"}})
BODY = LAUNCH.partition(b"\r\n\r\n")[2]


def hello_of_tls() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="here").do_handshake()
    return outgoing.read()


STRANGERS = {
    "a get": b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n",
    "a post": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://elsewhere.example\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "an upgrade": b"GET /djinn/api/live HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://elsewhere.example\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a hello of TLS": hello_of_tls(),
    "a message of an editor": LAUNCH,
    "a greeting of ZMQ": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL" + b"\x00" * 48 + b"\x04\x19\x05READY",
    "garbage": bytes(range(256)) * 16,
    "zeros": b"\x00" * 4096,
    "half a header": b"GET /metrics HTTP/1.1\r\nHost: 127.0",
    "an endless header": b"GET / HTTP/1.1\r\n" + b"X-More: y\r\n" * 20_000,
    "an endless line": b"Content-Type: " + b"x" * 500_000,
    "nothing": b"",
}


@contextmanager
def page() -> Iterator[tuple[int, Callable[[], object]]]:
    server, thread = start_page(0, "127.0.0.1", CollectorRegistry())

    def own() -> None:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=SECONDS) as answer:
            assert answer.status == 200

    yield server.server_port, own
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def adapter() -> Iterator[tuple[int, Callable[[], object]]]:
    port, token = adapters()

    def own() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as editor:
            begin = {"seq": 1, "type": "request", "command": "initialize"}
            attach = {"seq": 2, "type": "request", "command": "attach", "arguments": {"pid": 1, "token": token}}
            editor.sendall(encode(begin) + encode(attach))
            said = b""
            while b"no such engine" not in said:  # the token was taken
                more = editor.recv(65536)
                assert more, said
                said += more

    yield port, own


@contextmanager
def engine() -> Iterator[tuple[int, Callable[[], object]]]:
    admitted()
    with served(tcp=True) as serving:

        async def ping() -> None:
            connection = await opened(serving, "anna")
            assert isinstance(await connection.ask(Ping()), Pong)
            await connection.close()

        yield int(serving.service.listens.rpartition(":")[2]), lambda: asyncio.run(ping())


@contextmanager
def hub_service() -> Iterator[tuple[int, Callable[[], object]]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> HTTPServer:
        exchange = TokenExchange(
            hub=Hub("http://127.0.0.1:9/hub/api", frozenset()),
            loans=Loans(key_folder(), 600.0),
            engines_key=of_engines_here().public,
            host="127.0.0.1",
            running=lambda: (),
        )
        return listen(exchange.application("/services/djinn/"), "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result(SECONDS)
    address = f"http://127.0.0.1:{port_of(server)}/services/djinn/"

    def own() -> None:
        """Ask as a user's server does, and as a page does, which has no token."""
        with urlopen(address, timeout=SECONDS) as answer:
            assert answer.read().startswith(b"Djinn's service")
        for page in ({"Origin": "http://elsewhere.example"}, {"Host": "rebound.example"}):
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(address, data=b"{}", headers=page), timeout=SECONDS)
            assert refused.value.code == 403

    yield port_of(server), own
    loop.call_soon_threadsafe(server.stop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(SECONDS)


DOORS = {
    "the page of metrics": page,
    "the adapter": adapter,
    "an engine": engine,
    "the service of a hub": hub_service,
}


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNTIME", "DATA"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))


def answer_to(port: int, sent: bytes) -> bytes:
    """Send what a stranger sends, then close that side; return all that came back."""
    came = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as stranger:
        try:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(65536):
                came += more
        except OSError:  # the door has closed it
            pass
    return came


@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_in_what_is_another_doors(door: str) -> None:
    with DOORS[door]() as (port, own):
        for name, sent in STRANGERS.items():
            came = answer_to(port, sent)
            assert b"djinn_" not in came, name
            assert b"python_" not in came, name
            assert b'"success": true' not in came, name
            assert b" 200 " not in came.partition(b"\r\n")[0], name
        own()


@pytest.mark.parametrize("door", DOORS)
def test_a_crowd_of_silent_strangers_keeps_no_one_out_and_few_descriptors(door: str) -> None:
    """They say nothing, or half a message; the descriptors are those of both sides."""
    halves = (b"", STRANGERS["half a header"], LAUNCH[:-9], STRANGERS["a greeting of ZMQ"][:30])
    with DOORS[door]() as (port, own):
        own()
        before = descriptors()
        with ExitStack() as crowd:
            for number in range(CROWD):
                stranger = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
                with suppress(OSError):  # the door has closed it
                    stranger.sendall(halves[number % len(halves)])
            own()
            until(lambda: descriptors() <= before + CROWD + MOST_AT_ONE_DOOR, "the oldest are closed")
        until(lambda: descriptors() <= before, "their descriptors are free")
        own()


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def visit(port: int, headers: dict[str, str]) -> int:
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}/metrics", headers=headers), timeout=SECONDS) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
            return int(answer.status)
    except HTTPError as refused:
        return refused.code


def test_the_page_is_asked_by_the_machines_own_names_and_by_no_script() -> None:
    with page() as (port, _):
        for own in ("localhost", f"127.0.0.1:{port}", "LOCALHOST:1", "[::1]:9", "10.0.0.7", socket.gethostname()):
            assert visit(port, {"Host": own}) == 200, own
        for strange in ("rebound.example", f"rebound.example:{port}", "127.0.0.1.rebound.example", "localhost.x", ""):
            assert visit(port, {"Host": strange}) == 403, strange
        for origin in ("http://elsewhere.example", "null", f"http://127.0.0.1:{port}"):
            assert visit(port, {"Origin": origin}) == 403, origin


def test_silent_visitors_of_the_page_are_few_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.PageVisit, "timeout", 0.5)
    with page() as (port, own):
        silent = [socket.create_connection(("127.0.0.1", port), timeout=SECONDS) for _ in range(VISITORS * 3)]
        assert [one.recv(1) for one in silent] == [b""] * len(silent)
        own()
        for one in silent:
            one.close()
