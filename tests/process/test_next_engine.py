"""The next engine of a model, at the address where a client had the one before, which goes on with it by itself."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.process.afar import afar, entry_of, taken_by, until
from tests.process.served import served

pytestmark = pytest.mark.usefixtures("keys")


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
