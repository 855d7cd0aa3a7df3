"""A service on its sockets: runs, events, sessions and connections that end in any order."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import zmq

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.sender import Outbox
from djinn_jupyter.engine.process.service import Service
from djinn_jupyter.errors import EngineUnavailable, SessionHeld, UsageError
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.replies import (
    Event,
    Finished,
    Opened,
    Paused,
    Pong,
    SessionClosed,
    SessionFinished,
    TokenSampled,
    Welcome,
)
from djinn_jupyter.wire.requests import Open, Pause, Ping, Run
from tests.process.fake_engine import FakeEngine
from tests.process.peers import RawClient
from tests.process.served import served
from tests.waiting import SECONDS

HELLO = protocol.hello(holder="kernel-1", user="ada")


async def test_events_of_other_sessions_are_not_heard_even_if_their_names_begin_alike() -> None:
    """Those of a session come in order, before the reply."""
    with served() as house:
        client = await open_connection(house.entry, holder="kernel-1", user="ada")
        assert client.welcome.model.name == "fake"
        short: list[Event] = []
        long: list[Event] = []
        forget = await client.listen("paris", short.append)
        await client.listen("paris-2", long.append)
        await client.ask(Open(session="paris-2"))
        finished = await client.ask(Run(session="paris-2", tokens=(1,), max_new_tokens=50))
        assert isinstance(finished, Finished)
        assert isinstance(long[-1], SessionFinished)
        assert [event.token for event in long if isinstance(event, TokenSampled)] == list(finished.tokens)
        assert short == []
        forget()
        forget()
        await client.close()


async def test_a_run_can_be_paused_by_another_client_while_it_goes_on() -> None:
    with served() as house:
        runner = await open_connection(house.entry, holder="kernel-1", user="ada")
        sidebar = await open_connection(house.entry, holder="server", user="ada")
        await runner.ask(Open(session="paris"))
        running = asyncio.ensure_future(runner.ask(Run(session="paris", tokens=(1,), max_new_tokens=10_000_000)))
        await asyncio.sleep(0)
        while not (await sidebar.ask(Pause(session="paris"))).was_running:
            pass
        paused = await running
        assert isinstance(paused, Paused)
        assert paused.reason == "interrupt"
        for client in (runner, sidebar):
            await client.close()


async def test_a_session_of_another_holder_is_not_joined_silently() -> None:
    with served() as house:
        first = await open_connection(house.entry, holder="kernel-1", user="ada")
        second = await open_connection(house.entry, holder="kernel-2", user="ada")
        await first.ask(Open(session="paris"))
        with pytest.raises(SessionHeld):
            await second.ask(Open(session="paris"))
        assert isinstance(await second.ask(Open(session="paris", join=True)), Opened)
        await first.close()
        await second.close()


async def test_what_waits_when_the_service_stops_is_answered() -> None:
    with served() as house:
        client = await open_connection(house.entry, holder="kernel-1", user="ada")
        await client.ask(Open(session="paris"))
        running = asyncio.ensure_future(client.ask(Run(session="paris", tokens=(1,), max_new_tokens=10_000_000)))
        while house.service.statistics().pending == 0:
            await asyncio.sleep(0.001)
    with pytest.raises(EngineUnavailable, match="has been stopped"):
        await running
    await client.close()


async def test_bytes_are_counted_on_both_sides() -> None:
    with served() as house:
        client = await open_connection(house.entry, holder="kernel-1", user="ada")
        before = client.wire_bytes
        await client.ask(Ping())
        after = client.wire_bytes
        assert after.sent - before.sent == len(codec.encode(2, Ping())[0])
        assert after.received - before.received == len(codec.encode(2, Pong())[0])
        assert after.arrays_sent == after.arrays_received == 0
        await client.close()


def test_the_sockets_lie_in_a_folder_of_our_own() -> None:
    with served() as house:
        folder = Path(house.entry.commands.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_no_tcp_without_keys() -> None:
    with pytest.raises(UsageError, match="CURVE"):
        Service(_clients(), Outbox(), commands="tcp://127.0.0.1:*")


async def test_a_request_that_the_socket_does_not_take_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the engine has refused the keys before the request was sent."""

    def refuse(frames: object) -> None:
        raise zmq.Again

    with served() as house:
        client = await open_connection(house.entry, holder="kernel-1", user="ada")
        with monkeypatch.context() as full:
            full.setattr(client._socket, "send", refuse)
            with pytest.raises(EngineUnavailable, match="takes no requests"):
                await client.ask(Ping())
        assert isinstance(await client.ask(Ping()), Pong)
        await client.close()


def test_a_request_number_in_use_is_not_answered_twice() -> None:
    with served() as house, zmq.Context() as context:
        raw = RawClient(context, house.entry)
        assert isinstance(raw.ask(HELLO), Welcome)
        raw.ask(Open(session="paris"))
        for number, request in (
            (3, Run(session="paris", tokens=(1,), max_new_tokens=10_000_000)),
            (3, Ping()),
            (4, Pause(session="paris")),
        ):
            raw.send_frames(codec.encode(number, request))
        assert {raw.receive().id for _ in range(2)} == {3, 4}
        raw.number = 4
        assert raw.ask(Ping()) == Pong()
        assert house.service.statistics().dropped == 1
        raw.close()


def test_a_malformed_message_with_a_number_is_answered() -> None:
    with served() as house, zmq.Context() as context:
        raw = RawClient(context, house.entry)
        raw.send_frames([msgspec.msgpack.encode({"id": 8, "body": {"request": "Explode"}})])
        assert raw.reply_to(8).code == "MalformedMessage"
        assert house.service.statistics().refused == 1
        raw.close()


def _clients() -> ClientTable:
    return ClientTable(FakeEngine(), shut_down=lambda: None)


async def test_connections_may_end_in_any_order_with_their_engines_and_others_go_on() -> None:
    """All connections of a process share a thread of zmq's: one that ends may not leave it waiting for ever."""
    for number in range(15):
        with served() as house:
            client = await open_connection(house.entry, holder="kernel-1", user="ada", timeout=120.0)
            heard: list[Event] = []
            await client.listen("paris", heard.append)
            await client.ask(Open(session="paris"))
            await client.ask(Run(session="paris", tokens=(1,), max_new_tokens=number))
            await client.close()


async def test_no_session_is_named_as_a_persons_where_no_one_listens_either() -> None:
    with served() as house:
        connection = await open_connection(house.entry, holder="kernel-1", user="ada")
        with pytest.raises(UsageError, match="choose a name without @"):
            await connection.ask(Open(session="anna@main"))
        assert not house.engine.sessions
        await connection.close()


EVENT = SessionClosed(session="a")


def test_letting_out_returns_when_what_was_posted_is_sent() -> None:
    outbox = Outbox()
    outbox.post(EVENT)
    gone = threading.Thread(target=outbox.let_out, args=(60.0,))
    gone.start()
    assert outbox.take(woken=True) == [EVENT]
    assert gone.is_alive()  # taken, not yet sent
    outbox.note_sent()
    gone.join(SECONDS)
    assert not gone.is_alive()
    outbox.close()


def test_what_was_posted_while_others_were_sent_is_waited_for() -> None:
    outbox = Outbox()
    outbox.post(EVENT)
    outbox.take(woken=True)
    outbox.post(EVENT)
    outbox.note_sent()
    waits = threading.Thread(target=outbox.let_out, args=(60.0,))
    waits.start()
    assert len(outbox.take(woken=True)) == 1
    assert waits.is_alive()
    outbox.note_sent()
    waits.join(SECONDS)
    assert not waits.is_alive()
    outbox.close()


PROGRAM = """
import asyncio, gc
from djinn_jupyter.remote.connection import open_connection
from tests.process.served import served

async def forgotten(house):
    connection = await open_connection(house.entry, holder="kernel", user="ada")
    await connection.listen("paris", lambda event: None)

async def answered(house):
    connection = await open_connection(house.entry, holder="kernel", user="ada")
    await connection.close()

with served() as house:
    for _ in range(3):
        asyncio.run(forgotten(house))
        gc.collect()
    asyncio.run(answered(house))
"""


def test_the_collector_does_not_wait_for_a_forgotten_connection_and_others_go_on() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
