"""Persons at a service's door: who is admitted, by the key of the connection, and until when."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils import z85

from djinn_jupyter.engine.process.admission import LOCAL, UNKNOWN_KEY
from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused, UnknownSession, UsageError
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote.engine.persons import AdmittedKeys, require_free
from djinn_jupyter.remote.handshake import set_keys
from djinn_jupyter.units import spell_moment
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.registry import encode_entry
from djinn_jupyter.wire.replies import Event, Failed, Opened, Pong, Reply, SessionClosed, Sessions, Welcome
from djinn_jupyter.wire.requests import ListSessions, Open, Ping, Request, Run
from tests.process.admitted import admitted, entry_of, opened
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
    local = await Connection.open(house.entry, holder="kernel-1", user="root")
    listed = await local.ask(ListSessions())
    assert isinstance(listed, Sessions)
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
        await until(lambda name=name: len(heard[name]) >= 2)  # type: ignore[misc]
        assert {event.session for event in heard[name]} == {"main"}
    assert len(heard["anna"]) == len(heard["bert"])
    for one in (anna, bert):
        await one.close()


async def test_who_is_not_admitted_is_refused_in_one_sentence(house: Served, keys: KeyFolder) -> None:
    requests = house.service.statistics().requests
    with pytest.raises(KeyRefused, match="does not admit your key: there, `djinn key allow djinn-"):
        await opened(house, "eve")
    with pytest.raises(UsageError, match="name one of anna, bert, eve"):
        await Connection.open(entry_of(house, None), holder="kernel-1", user="root")
    afar = msgspec.structs.replace(
        entry_of(house, "anna"), commands=entry_of(house, "anna").commands.replace("127.0.0.1", "localhost")
    )
    with pytest.raises(KeyRefused, match="No key is trusted for localhost"):
        await Connection.open(afar, holder="kernel-1", user="root")
    keys.trust("localhost", own.draw()[0])
    with pytest.raises(KeyRefused, match="has not the key that is trusted for it"):
        await Connection.open(afar, holder="kernel-1", user="root")
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
        await Connection.open(listens, holder="kernel-1", user="root")
    monkeypatch.setattr(asyncio, "open_connection", of_several_addresses)
    with pytest.raises(EngineUnavailable, match=r"Nothing listens at 127.0.0.1:\d+ \(none of its addresses answers\)"):
        await Connection.open(listens, holder="kernel-1", user="root")
    monkeypatch.undo()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    nowhere = msgspec.structs.replace(listens, commands="tcp://no-such-host.invalid:5556")
    with pytest.raises(EngineUnavailable, match="no machine of that name"):
        await Connection.open(nowhere, holder="kernel-1", user="root")


async def test_one_who_is_revoked_is_refused_at_once_and_hears_no_more(house: Served, keys: KeyFolder) -> None:
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    heard: list[Event] = []
    await anna.listen("main", heard.append)
    for one in (anna, bert):
        await one.ask(Open(session="main"))
    running = asyncio.ensure_future(anna.ask(Run(session="main", tokens=(1,), max_new_tokens=10_000_000)))
    await until(lambda: bool(heard))
    keys.revoke("anna")
    with pytest.raises(KeyRefused, match="does not admit this key any more"):
        await running
    with pytest.raises(KeyRefused, match="does not admit this key any more"):
        await anna.ask(Ping())
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


async def test_one_whose_time_has_passed_is_refused_in_the_middle_of_a_run(house: Served, keys: KeyFolder) -> None:
    keys.allow(keys.own("anna").public, "anna", end := keys.now() + 3600)
    anna, bert = await opened(house, "anna"), await opened(house, "bert")
    heard: list[Event] = []
    await anna.listen("main", heard.append)
    await anna.ask(Open(session="main"))
    running = asyncio.ensure_future(anna.ask(Run(session="main", tokens=(1,), max_new_tokens=10_000_000)))
    await until(lambda: bool(heard))
    house.service._admitted._admitted._folder.now = lambda: end  # type: ignore[union-attr]
    ended = f"This key was admitted until {spell_moment(end)}: ask the engine's user"
    with pytest.raises(KeyRefused, match=ended):
        await running
    with pytest.raises(KeyRefused, match=ended):
        await anna.ask(Ping())
    with pytest.raises(KeyRefused, match="does not admit your key"):
        await opened(house, "anna")
    assert await bert.ask(Ping()) == Pong()
    for one in (anna, bert):
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
    assert isinstance(refused, Failed)
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
