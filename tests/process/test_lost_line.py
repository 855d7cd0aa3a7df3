"""Connections that are down and come back, to the same engine or to the next one of its model."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.process.seam import bytes_of
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.link import io_thread
from djinn_jupyter.link import transport as client_transport
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote import connection as remote_connection
from djinn_jupyter.remote.engine import connections
from djinn_jupyter.remote.engine.connections import EventRing
from djinn_jupyter.remote.handshake import RemoteSocket
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.pieces import PieceRequest
from tests.process.afar import PATIENCE_SECONDS, afar, entry_of, opened, taken_by, until
from tests.process.relay import Relay
from tests.process.served import Served, served
from tests.wire import strategies

AT_THE_DOOR = {ask.Hello, ask.Goodbye, ask.Ping, *get_args(PieceRequest)}  # answered by the service itself
SENT = sorted(set(kinds.known().requests) - AT_THE_DOOR, key=lambda kind: kind.__name__)
pytestmark = pytest.mark.usefixtures("keys")


async def test_a_run_goes_on_while_the_line_is_down_and_its_tokens_are_heard_once_and_in_order() -> None:
    async with afar() as (house, relay, connection):
        heard: list[told.Event] = []
        await connection.listen("paris", heard.append)
        await connection.ask(ask.Open(session="paris"))
        running = asyncio.ensure_future(connection.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=2000)))
        await until(lambda: len(heard) > 5)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        await until(lambda: not house.service.statistics().pending)
        assert not running.done()
        await relay.mend()
        finished = await running
        assert connection.down_since is None
        assert isinstance(finished, told.Finished)
        steps = [event.step for event in heard if isinstance(event, told.TokenSampled)]
        assert steps == list(range(1, 2001))
        assert isinstance(heard[-1], told.SessionFinished)


async def test_who_waits_in_a_cell_is_told_that_the_line_is_down_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(io_thread, "_on_stderr", said.append)
    monkeypatch.setattr(io_thread, "TOLD_SECONDS", 0.0)
    async with _channel() as (_, relay, channel):
        relay.cut()
        await until(lambda: channel.down_since is not None)
        asked = asyncio.ensure_future(asyncio.to_thread(lambda: channel.ask(ask.Ping()).result()))
        await until(lambda: bool(said))
        assert not asked.done()
        await relay.mend()
        assert isinstance(await asked, told.Pong)
    down, back = said
    assert down.startswith(f"The line to {relay.entry.commands.removeprefix('tcp://')} has been down for ")
    assert back.endswith(" is back.")


@asynccontextmanager
async def _channel() -> AsyncIterator[tuple[Served, Relay, SocketChannel]]:
    """A channel, as a kernel has it, that reaches an engine over a relay."""
    thread = IoThread()
    with served(tcp=True) as house:
        async with Relay(entry_of(house)) as relay:
            opening = functools.partial(
                SocketChannel, thread, relay.entry, holder="kernel-1", user="ada", notebook=None
            )
            channel = await asyncio.to_thread(opening)
            yield house, relay, channel
            await asyncio.to_thread(channel.close)
    thread.stop()


async def test_who_watches_the_line_is_told_of_a_loss_that_lasts_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with afar() as (_, relay, connection):
        told_of: list[float | None] = []
        connection.watch_connection(told_of.append)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        await relay.mend()
        await until(lambda: connection.down_since is None)
        assert told_of == []  # it was back at once
        monkeypatch.setattr(remote_connection, "DOWN_SECONDS", 0.0)
        relay.cut()
        await until(lambda: bool(told_of))
        assert told_of == [connection.down_since]
        later: list[float | None] = []
        connection.watch_connection(later.append)  # a card that is drawn meanwhile
        assert later == told_of
        await relay.mend()
        await until(lambda: connection.down_since is None)
        assert told_of[1:] == later[1:] == [None]


async def test_who_is_interrupted_while_the_line_is_down_listens_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(io_thread, "_on_stderr", interrupt)
    monkeypatch.setattr(io_thread, "TOLD_SECONDS", 0.0)
    async with _channel() as (house, relay, channel):
        taken = taken_by(house)
        relay.cut()
        await until(lambda: channel.down_since is not None)

        def listen() -> None:
            with pytest.raises(KeyboardInterrupt):
                channel.listen("paris", lambda event: None)

        await asyncio.to_thread(listen)
        await relay.mend()
        await until(lambda: len(taken) == 2)
        assert taken == [ask.Listen(session="paris"), ask.Unlisten(session="paris")]
        assert not channel._connection._subscriptions._listeners


async def test_a_request_that_is_followed_is_sent_with_its_listening_and_heard_from_its_first_event() -> None:
    """The engine's replies are held back: what waits for the reply to Listen would not send the run."""
    async with _channel() as (house, relay, channel):
        await asyncio.wrap_future(channel.ask(ask.Open(session="paris")))
        heard: list[told.Event] = []
        taken = taken_by(house)
        relay.swallows_replies = True
        run = ask.Run(session="paris", tokens=(1,), max_new_tokens=3)
        reply, forget = channel.follow("paris", run, heard.append)
        await until(lambda: len(taken) == 2)
        assert taken == [ask.Listen(session="paris"), run]
        relay.cut()
        await until(lambda: channel.down_since is not None)
        await relay.mend()
        await asyncio.wrap_future(reply)
        assert [type(event) for event in heard].count(told.TokenSampled) == 3
        forget()
        await until(lambda: ask.Unlisten(session="paris") in taken)


async def test_a_client_that_missed_more_than_is_kept_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with afar() as (house, relay, connection):
        monkeypatch.setattr(house.clients.listeners, "events", EventRing(most_events=10))
        heard: list[told.Event] = []
        await connection.listen("paris", heard.append)
        await connection.ask(ask.Open(session="paris"))
        relay.cut()
        await until(lambda: connection.down_since is not None)
        other = await opened(entry_of(house), "kernel-2")
        await other.ask(ask.Open(session="paris", join=True))
        await other.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=20))
        await relay.mend()
        await until(lambda: connection.down_since is None)
        await connection.ask(ask.Ping())
        assert [type(event) for event in heard] == [told.EventsMissed]
        await other.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=1))
        await until(lambda: isinstance(heard[-1], told.SessionFinished))
        await other.close()


async def test_requests_made_while_the_line_is_down_wait_and_are_done_in_order() -> None:
    async with afar() as (house, relay, connection):
        relay.cut()
        await until(lambda: connection.down_since is not None)
        opened = asyncio.ensure_future(connection.ask(ask.Open(session="paris")))
        finished = asyncio.ensure_future(connection.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=2)))
        await asyncio.sleep(0)
        await relay.mend()
        assert isinstance(await opened, told.Opened)
        assert isinstance(await finished, told.Finished)
        assert list(house.engine.sessions) == ["ada@paris"]


@pytest.mark.parametrize("cut", ["before", "after"])
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_requests_of_every_kind_whose_line_is_cut_are_done_once(cut: str, data: st.DataObject) -> None:
    """Cut before the engine took them, or after that, when their replies were on the way."""
    asyncio.run(_cut_and_mended([data.draw(strategies.of(kind)) for kind in SENT], cut))


async def _cut_and_mended(requests: list[ask.Request], cut: str) -> None:
    async with afar() as (house, relay, connection):
        taken = taken_by(house)
        relay.swallows_requests, relay.swallows_replies = cut == "before", cut == "after"
        asked = [asyncio.ensure_future(connection.ask(request)) for request in requests]
        await until(lambda: relay.swallowed if cut == "before" else len(taken) >= len(requests))
        relay.cut()
        await until(lambda: connection.down_since is not None)
        assert not any(one.done() for one in asked)
        await relay.mend()
        outcomes = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_SECONDS)
        assert [type(one) for one in taken] == [type(request) for request in requests]
        assert [one for one in outcomes if isinstance(one, EngineUnavailable)] == []


async def test_a_reply_that_is_kept_no_longer_is_said_so_and_a_reading_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_BYTES_OF_REPLIES", 1)
    async with afar() as (house, relay, connection):
        taken = taken_by(house)
        relay.swallows_replies = True
        opened = asyncio.ensure_future(connection.ask(ask.Open(session="paris")))
        listed = asyncio.ensure_future(connection.ask(ask.ListSessions()))
        await until(lambda: len(taken) == 2 and "ada@paris" in house.engine.sessions)
        await until(lambda: not house.service.statistics().pending)
        relay.cut()
        await relay.mend()
        with pytest.raises(EngineUnavailable, match="its reply is not kept any more"):
            await opened
        assert isinstance(await listed, told.Sessions)
        assert [type(request).__name__ for request in taken] == ["Open", "ListSessions", "ListSessions"]


async def test_replies_that_have_arrived_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_transport, "PING_SECONDS", 2 * PATIENCE_SECONDS)  # no Ping but the one of the test
    async with afar() as (house, _, connection):
        for _ in range(3):
            await connection.ask(ask.ListSessions())
        ((name, client),) = house.service._reconnects.clients.items()
        assert client.kept.numbers(name) == {1, 2, 3, 4}  # with that to Hello
        await connection.ask(ask.Ping(answered=4))
        assert client.kept.numbers(name) == {5}
        assert client.kept.bytes == bytes_of(client.kept.get(name, 5) or [])


async def test_a_client_that_says_goodbye_is_forgotten() -> None:
    with served(tcp=True) as house:
        connection = await opened(entry_of(house))
        await connection.listen("paris", lambda event: None)
        await connection.close()
        await until(lambda: len(house.service._reconnects.clients) == 0)
        assert not house.clients.listeners.of("ada@paris")


async def test_each_line_has_a_routing_id_that_no_other_can_guess() -> None:
    async with afar() as (house, relay, _):
        (client,) = house.service._reconnects.clients.values()
        first = client.peer
        relay.cut()
        await relay.mend()
        await until(lambda: client.peer != first)
        assert len(first) == len(client.peer) > 16


async def test_a_line_that_cannot_be_opened_just_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [zmq.ZMQError(errno.EMFILE), OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def made(*given: Any, **named: Any) -> RemoteSocket:
        if refusals:
            raise refusals.pop()
        return RemoteSocket(*given, **named)

    async with afar() as (_, relay, connection):
        monkeypatch.setattr(remote_connection, "RemoteSocket", made)
        relay.cut()
        await relay.mend()
        await until(lambda: not refusals)
        listed = await asyncio.wait_for(connection.ask(ask.ListSessions()), PATIENCE_SECONDS)
        assert isinstance(listed, told.Sessions)


async def test_a_line_that_gets_no_monitor_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[zmq.Socket[bytes]] = []

    def refused(socket: zmq.Socket[bytes], events: int) -> None:
        made.append(socket)
        raise zmq.ZMQError(errno.EMFILE)

    async with afar() as (_, relay, _):
        monkeypatch.setattr(zmq.Socket, "get_monitor_socket", refused)
        with zmq.Context() as context:
            with pytest.raises(zmq.ZMQError):
                RemoteSocket(context, relay.entry, lambda frames: None, patient=True)
            assert [socket.closed for socket in made] == [True]  # before the context closes what it has


async def test_who_is_revoked_while_the_line_is_down_does_not_come_back() -> None:
    async with afar() as (house, relay, connection):
        relay.cut()
        await until(lambda: connection.down_since is not None)
        asked = asyncio.ensure_future(connection.ask(ask.Open(session="paris")))
        own.key_folder().revoke("ada")
        await relay.mend()
        with pytest.raises(EngineUnavailable, match="does not admit your key"):
            await asked
        assert not house.engine.sessions


async def test_who_was_revoked_and_is_admitted_again_is_told_and_nothing_is_done_twice() -> None:
    async with afar() as (house, relay, connection):
        taken = taken_by(house)
        relay.swallows_replies = True
        asked = asyncio.ensure_future(connection.ask(ask.Open(session="paris")))
        await until(lambda: "ada@paris" in house.engine.sessions)
        await until(lambda: not house.service.statistics().pending)
        relay.cut()
        folder = own.key_folder()
        folder.revoke("ada")
        await until(lambda: len(house.service._reconnects.clients) == 0)
        folder.allow(folder.own("ada").public, "ada")
        await relay.mend()
        with pytest.raises(EngineUnavailable, match="does not know this client any more"):
            await asked
        assert taken == [ask.Open(session="paris")]
        other = await opened(relay.entry)
        assert isinstance(await other.ask(ask.Open(session="paris", join=True)), told.Opened)
        await other.close()


async def test_over_a_private_folder_a_lost_connection_stays_lost() -> None:
    with served() as house:
        connection = await opened(house.entry)
        assert len(house.service._reconnects.clients) == 0
    assert "closed the connection" in await connection.ended()
    await connection.close()


async def test_the_next_engine_of_the_model_is_gone_on_with_and_hears_what_is_listened_to() -> None:
    async with afar() as (_, relay, connection):
        heard: list[told.Event] = []
        await connection.listen("paris", heard.append)
        with served(tcp=True) as anew:
            relay.cut()
            await until(lambda: connection.down_since is not None)
            opened = asyncio.ensure_future(connection.ask(ask.Open(session="paris")))
            taken = taken_by(anew)
            relay.lead_to(entry_of(anew))
            await relay.mend()
            assert isinstance(await opened, told.Opened)
            assert taken == [ask.Listen(session="paris"), ask.Open(session="paris")]  # its events are heard
            assert list(anew.engine.sessions) == ["ada@paris"]
            await connection.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=2))
            assert isinstance(heard[0], told.EventsMissed)
            assert [type(event) for event in heard].count(told.TokenSampled) == 2
            relay.cut()
            await relay.mend()
            await connection.ask(ask.ListSessions())
            assert taken[3:] == [ask.ListSessions()], "it is known there now, and asks for nothing again"


async def test_what_no_session_keeps_is_not_done_again_by_the_next_engine() -> None:
    async with afar() as (_, relay, connection):
        with served(tcp=True) as anew:
            relay.swallows_requests = True
            dropped = asyncio.ensure_future(connection.ask(ask.DropCheckpoint(name="kept")))
            await until(lambda: bool(relay.swallowed))
            relay.cut()
            relay.lead_to(entry_of(anew))
            await relay.mend()
            with pytest.raises(EngineUnavailable, match="it is not known whether it was done"):
                await dropped


async def test_an_engine_of_another_model_is_another() -> None:
    async with afar() as (_, relay, connection):
        with served(tcp=True) as anew:
            anew.engine.description = msgspec.structs.replace(anew.engine.description, name="gpt2")
            relay.cut()
            relay.lead_to(entry_of(anew))
            await relay.mend()
            assert await connection.ended() == f"{connection.entry.named} serves gpt2 now; load the model again."
