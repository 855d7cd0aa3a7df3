"""The key of a connection: how it is met, that it counts for every message, and that what was recorded is worth
nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
import zmq

from djinn_jupyter.engine.process import service
from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import handshake
from djinn_jupyter.remote import handshake as greeting
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire.codec import PART_BYTES
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.replies import Event, Opened, Pong, Reply, Welcome
from djinn_jupyter.wire.requests import Goodbye, Hello, Open, Ping, Run, SessionRequest
from tests.process.admitted import admitted, entry_of, opened
from tests.process.relay import Breaking, Recording
from tests.process.served import Served, served
from tests.waiting import SECONDS
from tests.wire import values

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def keys() -> KeyFolder:
    return admitted()


@pytest.fixture
def house(keys: KeyFolder) -> Iterator[Served]:
    with served(tcp=True, token_seconds=0.001) as house:
        yield house


@pytest.mark.parametrize("kind", kinds.known().requests, ids=lambda kind: kind.__name__)
async def test_the_key_is_looked_at_for_every_kind_of_request(house: Served, keys: KeyFolder, kind: type) -> None:
    """Anna and bert are greeted and listen; anna is revoked. Whatever she sends then is refused before the engine sees
    it, ends her connection's part, and is no matter to bert."""
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    heard: list[Event] = []
    await anna.listen("", heard.append)
    await anna.ask(Open(session="main"))
    await bert.ask(Open(session="main"))
    keys.revoke("anna")
    seen = house.service.statistics().requests
    for fields in values.requests(kind, "ordinary")[:3]:
        request = kind(**{**fields, **({"session": "main"} if issubclass(kind, SessionRequest) else {})})
        with pytest.raises(KeyRefused, match="does not admit this key any more"):
            await anna.ask(request)
    assert house.service.statistics().requests == seen
    del heard[:]
    await bert.ask(Run(session="main", tokens=(1,), max_new_tokens=1))
    local = await Connection.open(house.entry, holder="kernel-9", user="root")
    await local.ask(Run(session="anna@main", tokens=(1,), max_new_tokens=1))
    assert isinstance(await bert.ask(Ping()), Pong)
    assert heard == []
    for one in (bert, local, anna):
        await one.close()


@pytest.mark.parametrize("revoked", [False, True])
def test_a_request_is_of_the_key_that_it_came_by_however_long_it_is_read(
    house: Served, keys: KeyFolder, revoked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anna's Hello is read in parts, between which the service forgets who has not said Hello; what she sent behind it
    waits. A revoked one is refused by the first of them, and forgotten."""
    monkeypatch.setattr(service, "SWEEP_SECONDS", 0.0)
    hello = protocol.hello(holder="kernel-1", user="root")
    with zmq.Context() as context, context.socket(zmq.DEALER) as anna:
        anna.setsockopt(zmq.LINGER, 0)
        handshake.set_keys(anna, entry_of(house, "anna"))
        anna.connect(entry_of(house, "anna").commands)
        anna.send_multipart(codec.encode(1, hello))
        assert isinstance(reply_to(anna, 1), Welcome)
        anna.send_multipart(codec.encode(2, Goodbye()))
        reply_to(anna, 2)
        if revoked:
            keys.revoke("anna")
            anna.send_multipart(long_to_read(3, hello))
            anna.send_multipart(codec.encode(4, hello))
            anna.send_multipart(codec.encode(5, Open(session="main")))
            assert [getattr(reply_to(anna, number), "code", "") for number in (3, 4, 5)] == ["KeyRefused"] * 3
        else:
            anna.send_multipart(long_to_read(3, hello))
            assert isinstance(reply_to(anna, 3), Welcome)
            assert [client.holder.person for client in house.clients._clients.values()] == ["anna"]
    assert list(house.engine.sessions) == []


def reply_to(client: zmq.Socket[bytes], number: int) -> Reply:
    assert client.poll(1000 * SECONDS)
    envelope = codec.decode_reply(client.recv_multipart())
    assert envelope.id == number
    return envelope.body


def long_to_read(number: int, hello: Hello) -> list[bytes]:
    """Return a Hello that is decoded in parts, by a field that no version has."""
    envelope = msgspec.msgpack.decode(codec.encode(number, hello)[0])
    envelope["body"]["unknown"] = "x" * 2 * PART_BYTES
    return [msgspec.msgpack.encode(envelope)]


async def test_what_was_recorded_on_a_line_is_worth_nothing_when_it_is_sent_again(house: Served) -> None:
    """All that a client of anna has sent, byte for byte on a new connection: the engine's part of the keys is another,
    and it closes the connection before any message counts."""
    async with Recording(entry_of(house, "anna")) as line:
        anna = await Connection.open(line.entry, holder="kernel-1", user="root")
        await anna.ask(Open(session="main"))
        await anna.ask(Run(session="main", tokens=(1,), max_new_tokens=1))
        await anna.close()
    (sent, *_) = sorted(line.recorded, key=len, reverse=True)
    assert len(sent) > 1000
    before = house.service.statistics().requests
    address = read_address(entry_of(house, "anna").commands)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(sent)
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
    writer.close()
    assert house.service.statistics().requests == before


async def test_a_listener_that_says_nothing_is_no_engine(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_MILLISECONDS", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        entry = entry_at(read_address(f"tcp://127.0.0.1:{silent.getsockname()[1]}"), "anna")
        monkeypatch.setattr(greeting, "LOOK_SECONDS", 0.1)
        with pytest.raises(EngineUnavailable, match=r"What listens at 127.0.0.1:\d+ is no engine of Djinn"):
            async with asyncio.timeout(20):  # zmq's own patience is 30 s
                await Connection.open(entry, holder="kernel-1", user="root")


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_server_of_another_kind_is_no_engine(said: bytes, keys: KeyFolder) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        entry = entry_at(read_address(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "anna")
        with pytest.raises(EngineUnavailable, match="is no engine of Djinn that others reach: mind the port"):
            await Connection.open(entry, holder="kernel-1", user="root")


async def test_a_socket_of_zmq_without_keys_is_no_engine_that_others_reach(keys: KeyFolder) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        entry = entry_at(read_address(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"), "anna")
        with pytest.raises(EngineUnavailable, match="is no engine of Djinn that others reach: mind the port"):
            await Connection.open(entry, holder="kernel-1", user="root")


@pytest.mark.parametrize("behind", [False, True])
async def test_a_line_that_breaks_off_a_handshake_is_tried_again(house: Served, behind: bool) -> None:
    """The first attempt, and the look behind it, or the second attempt."""
    async with Breaking(entry_of(house, "anna"), 2, behind=behind) as line:
        connection = await Connection.open(line.entry, holder="kernel-1", user="root")
        assert isinstance(await connection.ask(Open(session="main")), Opened)
        assert line.broken == 0
        await connection.close()


@pytest.mark.parametrize(
    ("behind", "error", "said"),
    [
        (False, EngineUnavailable, "The line to .* broke off before either side knew the other, 3 times"),
        (True, KeyRefused, "has not the key that is trusted for it, or the line broke off each of 3 handshakes"),
    ],
)
async def test_one_that_breaks_off_all_of_them_is_said(
    house: Served, behind: bool, error: type[DjinnError], said: str
) -> None:
    """Behind the greeting a wrong key does that too."""
    async with Breaking(entry_of(house, "anna"), 1000, behind=behind) as line:
        with pytest.raises(error, match=said):
            await Connection.open(line.entry, holder="kernel-1", user="root")
