"""Persons are known by the keys of their messages: who is admitted, who is revoked, and who listens without one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils import z85

from djinn_jupyter.engine.process import service
from djinn_jupyter.engine.process.seam import UNKNOWN_KEY
from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused, UnknownSession, UsageError
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote import handshake
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.remote.engine.access_keys import AdmittedKeys, require_free
from djinn_jupyter.remote.engine.persons import with_presence
from djinn_jupyter.remote.handshake import set_keys
from djinn_jupyter.units import spell_moment
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.codec import PART_BYTES
from djinn_jupyter.wire.keys import LOCAL, KeyFolder
from djinn_jupyter.wire.nouns import PersonMemory
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.people import People, PersonDescription
from djinn_jupyter.wire.registry import encode_entry
from djinn_jupyter.wire.replies import Event, Failed, Opened, Pong, Reply, SessionClosed, Welcome
from djinn_jupyter.wire.requests import Goodbye, Hello, ListSessions, Open, Ping, Request, Run
from tests.process.admitted import admitted, entry_of, opened
from tests.process.relay import Breaking, Recording
from tests.process.served import Served, served
from tests.waiting import SECONDS
from tests.waiting import until as waited

ROUTING_ID = b"the same"
pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def keys() -> KeyFolder:
    return admitted()


@pytest.fixture
def house(keys: KeyFolder) -> Iterator[Served]:
    with served(tcp=True, token_seconds=0.001) as house:
        yield house


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_person_is_known_by_the_key_whatever_hello_says(house: Served) -> None:
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    for one, name in ((anna, "anna"), (bert, "bert")):
        made = await one.ask(Open(session="main"))
        assert isinstance(made, Opened)
        assert (made.session.name, made.session.owner) == ("main", name)
    assert sorted(house.engine.sessions) == ["anna@main", "bert@main"]
    local = await open_connection(house.entry, holder="kernel-1", user="root")
    listed = await local.ask(ListSessions())
    assert [one.name for one in listed.sessions] == ["anna@main", "bert@main"]
    for one in (anna, bert, local):
        await one.close()


async def test_each_hears_the_events_of_their_own_sessions_alone(house: Served) -> None:
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    heard: dict[str, list[Event]] = {"anna": [], "bert": []}
    for one, name in ((anna, "anna"), (bert, "bert")):
        await one.listen("", heard[name].append)
        other = {"anna": "bert", "bert": "anna"}[name]
        with pytest.raises(UnknownSession, match="is shared with you"):
            await one.listen(f"{other}@main", heard[name].append)
        await one.ask(Open(session="main"))
        await one.ask(Run(session="main", tokens=(1,), max_new_tokens=2))
    for name in ("anna", "bert"):
        await until(lambda name=name: len(heard[name]) >= 2)
        assert {event.session for event in heard[name]} == {"main"}
    assert len(heard["anna"]) == len(heard["bert"])
    for one in (anna, bert):
        await one.close()


async def test_who_is_not_admitted_is_refused_in_one_sentence(house: Served, keys: KeyFolder) -> None:
    requests = house.service.statistics().requests
    with pytest.raises(KeyRefused, match="does not admit your key: there, `djinn key allow djinn-"):
        await opened(house, "eve")
    with pytest.raises(UsageError, match="name one of anna, bert, eve"):
        await open_connection(entry_of(house, None), holder="kernel-1", user="root")
    afar = msgspec.structs.replace(
        entry_of(house, "anna"), commands=entry_of(house, "anna").commands.replace("127.0.0.1", "localhost")
    )
    with pytest.raises(KeyRefused, match="No key is trusted for localhost"):
        await open_connection(afar, holder="kernel-1", user="root")
    keys.trust("localhost", own.draw()[0])
    with pytest.raises(KeyRefused, match="has not the key that is trusted for it"):
        await open_connection(afar, holder="kernel-1", user="root")
    assert house.service.statistics().requests == requests


async def test_a_refusal_that_is_there_before_the_first_message_is_sent_says_the_same(
    house: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so loaded that the client goes on only when the handshake is over."""
    connect = zmq.Socket.connect

    def slowly(socket: zmq.Socket[bytes], address: str) -> None:
        connect(socket, address)
        if socket.type == zmq.DEALER:
            waited(lambda: not socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT, "the engine has refused the key")

    monkeypatch.setattr(zmq.Socket, "connect", slowly)
    with pytest.raises(KeyRefused, match="does not admit your key: there, `djinn key allow djinn-"):
        await opened(house, "eve")


async def test_where_no_one_listens_it_is_said(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, *of: object, **more: object) -> None:  # where no server of names answers it takes longer
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def of_several_addresses(host: str, port: int) -> None:
        raise OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 5556, 0, 0), [Errno 111] Connect")

    listens = entry_of(house, "anna")
    house.service.stop()
    with pytest.raises(EngineUnavailable, match=r"Nothing listens at 127.0.0.1:\d+ \(connection refused\)"):
        await open_connection(listens, holder="kernel-1", user="root")
    monkeypatch.setattr(asyncio, "open_connection", of_several_addresses)
    with pytest.raises(EngineUnavailable, match=r"Nothing listens at 127.0.0.1:\d+ \(none of its addresses answers\)"):
        await open_connection(listens, holder="kernel-1", user="root")
    monkeypatch.undo()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    nowhere = msgspec.structs.replace(listens, commands="tcp://no-such-host.invalid:5556")
    with pytest.raises(EngineUnavailable, match="no machine of that name"):
        await open_connection(nowhere, holder="kernel-1", user="root")


@pytest.mark.parametrize("how", ["revoked", "its time has passed"])
async def test_one_who_is_revoked_is_refused_at_once_and_hears_no_more(
    house: Served, keys: KeyFolder, how: str
) -> None:
    keys.allow(keys.own("anna").public, "anna", end := keys.now() + 3600)
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    heard: list[Event] = []
    await anna.listen("main", heard.append)
    for one in (anna, bert):
        await one.ask(Open(session="main"))
    running = asyncio.ensure_future(anna.ask(Run(session="main", tokens=(1,), max_new_tokens=10_000_000)))
    await until(lambda: bool(heard))
    if how == "revoked":
        keys.revoke("anna")
        refused = "does not admit this key any more"
    else:
        house.service._admitted._admitted._folder.now = lambda: end
        refused = f"This key was admitted until {spell_moment(end)}: ask the engine's user"
    for asked in (running, anna.ask(Ping())):
        with pytest.raises(KeyRefused, match=refused):
            await asked
    assert house.clients.hearing(SessionClosed(session="anna@main")) == []
    last = len(heard)
    at = house.engine.sessions["anna@main"].new
    await until(lambda: house.engine.sessions["anna@main"].new > at + 5)
    assert await bert.ask(Ping()) == Pong()
    assert len(heard) == last
    with pytest.raises(KeyRefused, match="does not admit your key"):
        await opened(house, "anna")
    keys.allow(keys.own("anna").public, "anna")
    again = await opened(house, "anna")
    assert isinstance(await again.ask(Open(session="main", join=True)), Opened)
    for one in (anna, bert, again):
        await one.close()


def test_one_who_is_not_admitted_is_not_taken_for_the_engines_own_user(keys: KeyFolder) -> None:
    admission = AdmittedKeys(keys.admitted())
    for key in (keys.own("eve").public, UNKNOWN_KEY):
        assert not admission.admits(key)
        with pytest.raises(KeyRefused, match="does not admit this key any more"):
            admission.person(key)
    assert admission.person(LOCAL) is None


def test_a_routing_id_that_another_had_is_no_way_to_their_replies(house: Served) -> None:
    """Anna's line is lost, bert connects under the routing id that it had, and anna comes back."""
    opens, greets = (2, Open(session="main")), protocol.hello(holder="kernel-1", user="root", token="of anna")
    with zmq.Context() as context:
        welcomed, opened = under_one_routing_id(context, house, "anna", (1, greets), opens)
        (refused,) = under_one_routing_id(context, house, "bert", opens)
        back, again = under_one_routing_id(context, house, "anna", (3, greets), opens)
    assert (type(welcomed), type(back)) == (Welcome, Welcome)
    assert "say Hello first" in refused.message
    assert isinstance(opened, Opened)
    assert again == opened
    assert list(house.engine.sessions) == ["anna@main"]


def test_what_a_client_without_a_token_waits_for_is_not_sent_to_one_who_has_its_routing_id(house: Served) -> None:
    greets, opens = protocol.hello(holder="kernel-1", user="root"), Open(session="main")
    runs = Run(session="main", tokens=(1,), max_new_tokens=10_000_000)
    with zmq.Context() as context:
        under_one_routing_id(context, house, "anna", (1, greets), (2, opens), (3, runs), (4, Ping()), unanswered=3)
        assert (ROUTING_ID, 3) in house.service._sender.pending
        (refused,) = under_one_routing_id(context, house, "bert", (5, Ping()))
    assert isinstance(refused, Failed)
    assert len(house.service._sender.pending) == 0
    assert not house.clients.knows(ROUTING_ID)


def under_one_routing_id(
    context: zmq.Context[zmq.Socket[bytes]],
    house: Served,
    key: str,
    *asked: tuple[int, Request],
    unanswered: int | None = None,
) -> list[Reply]:
    """Return the replies to requests on a new connection, which is closed then. Its routing id is free once the service
    has noticed that the connection before is closed: until then zmq reads nothing of it."""
    numbers = [number for number, _ in asked if number != unanswered]
    milliseconds = 100

    def replies() -> list[Reply]:
        nonlocal milliseconds
        milliseconds *= 2
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.ROUTING_ID, ROUTING_ID)
            socket.setsockopt(zmq.LINGER, 0)
            set_keys(socket, entry_of(house, key))
            socket.connect(entry_of(house, key).commands)
            for number, request in asked:
                socket.send_multipart(codec.encode(number, request))
            found: dict[int, Reply] = {}
            while not found.keys() >= set(numbers) and socket.poll(milliseconds):
                envelope = codec.decode_reply(socket.recv_multipart())
                found[envelope.id] = envelope.body
            return [found[number] for number in numbers] if found.keys() >= set(numbers) else []

    return waited(replies, "the routing id is free")


async def test_of_clients_that_have_gone_no_key_is_remembered(house: Served) -> None:
    for _ in range(5):
        anna = await opened(house, "anna")
        assert await anna.ask(Ping()) == Pong()
        await anna.close()
    await until(lambda: not house.service._keys)


async def test_no_key_is_in_an_entry_an_error_or_a_log(
    house: Served, keys: KeyFolder, caplog: pytest.LogCaptureFixture, runtime: Path
) -> None:
    with caplog.at_level(logging.DEBUG):
        anna = await opened(house, "anna")
        said = [repr(anna.entry), repr(vars(anna)), repr(house.entry), repr(house.service)]
        said += [encode_entry(anna.entry).decode(), encode_entry(house.entry).decode()]
        for key in ("eve", "no-one"):
            with pytest.raises(DjinnError) as refused:
                await opened(house, key)
            said.append(str(refused.value))
        await anna.close()
    said.append(caplog.text)
    pairs = [keys.own(name) for name in ("anna", "bert", "eve")] + [own.of_engines_here()]
    everything = "\n".join(said)
    for pair in pairs:
        for spelled in (pair.secret.hex(), repr(pair.secret)[2:-1], z85.encode(pair.secret).decode()):
            assert spelled not in everything
    assert host_name() in everything


def test_an_address_in_use_is_one_sentence_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on tcp://127.0.0.1:{port} .*: give another address with"):
            require_free(f"tcp://127.0.0.1:{port}")
    for address in (f"tcp://127.0.0.1:{port}", "tcp://127.0.0.1:*", "tcp://127.0.0.1:0"):
        require_free(address)


def _speaks_six() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _speaks_six(), reason="this machine has no IPv6")
async def test_a_person_comes_by_an_address_of_version_six(keys: KeyFolder) -> None:
    keys.trust("[::1]", own.of_engines_here().public)
    with served(tcp=True, host="[::1]") as house:
        anna = await opened(house, "anna")
        assert isinstance(await anna.ask(Ping()), Pong)
        await anna.close()


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
        anna = await open_connection(line.entry, holder="kernel-1", user="root")
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
        monkeypatch.setattr(handshake, "LOOK_SECONDS", 0.1)
        with pytest.raises(EngineUnavailable, match=r"What listens at 127.0.0.1:\d+ is no engine of Djinn"):
            async with asyncio.timeout(20):  # zmq's own patience is 30 s
                await open_connection(entry, holder="kernel-1", user="root")


async def test_a_server_of_another_kind_is_no_engine(keys: KeyFolder) -> None:
    """Nor is a socket of zmq without keys one that others reach."""
    says = [b""]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says[0])
        await reader.read(1)
        writer.close()

    async def refused(port: int) -> None:
        entry = entry_at(read_address(f"tcp://127.0.0.1:{port}"), "anna")
        with pytest.raises(EngineUnavailable, match="is no engine of Djinn that others reach: mind the port"):
            await open_connection(entry, holder="kernel-1", user="root")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        for says[0] in (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            await refused(server.sockets[0].getsockname()[1])
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        await refused(router.bind_to_random_port("tcp://127.0.0.1"))


@pytest.mark.parametrize("behind", [False, True])
async def test_a_line_that_breaks_off_a_handshake_is_tried_again(
    house: Served, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """The first attempt, and the look behind it, or the second attempt."""
    monkeypatch.setattr(handshake, "LOOK_SECONDS", 1.0)
    monkeypatch.setattr(handshake, "HANDSHAKE_MILLISECONDS", 3000)
    async with Breaking(entry_of(house, "anna"), 2, behind=behind) as line:
        connection = await open_connection(line.entry, holder="kernel-1", user="root")
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
    house: Served, monkeypatch: pytest.MonkeyPatch, behind: bool, error: type[DjinnError], said: str
) -> None:
    """Behind the greeting a wrong key does that too."""
    monkeypatch.setattr(handshake, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(handshake, "HANDSHAKE_MILLISECONDS", 500)
    async with Breaking(entry_of(house, "anna"), 1000, behind=behind) as line:
        with pytest.raises(error, match=said):
            await open_connection(line.entry, holder="kernel-1", user="root")


def memory(person: str | None, size: int = 0) -> PersonMemory:
    return PersonMemory(person=person, device_bytes=size, host_bytes=0, disk_bytes=0)


def test_all_who_are_admitted_or_were_heard_are_listed_in_order() -> None:
    heard = {None: 100.0, "bert": 130.0}  # whose key was revoked since
    holding = PersonDescription(memory=memory("anna", 7), sessions=2, running=1)
    told = with_presence(People(people=(holding,)), ("carl", "anna"), heard, 140.0, ["bert", "anna", "bert"])
    assert [(one.person, one.sessions, one.notebooks, one.seen_seconds) for one in told.people] == [
        (None, 0, 0, 40.0),
        ("anna", 2, 1, None),
        ("bert", 0, 2, 10.0),
        ("carl", 0, 0, None),
    ]
    assert told.people[1].memory.device_bytes == 7
