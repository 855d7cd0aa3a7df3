"""A client of a served engine, over TCP and a line that a test cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.registry import Entry
from tests.process.relay import Relay
from tests.process.served import Served, served

PATIENCE_SECONDS = 120.0
MESSAGE_BYTES = 2**23  # more than a piece


@asynccontextmanager
async def afar() -> AsyncIterator[tuple[Served, Relay, Connection]]:
    """A client that reaches an engine over a relay."""
    with served(tcp=True, message_bytes=MESSAGE_BYTES) as house:
        async with Relay(entry_of(house)) as relay:
            connection = await opened(relay.entry)
            try:
                yield house, relay, connection
            finally:
                await connection.close()


def entry_of(house: Served) -> Entry:
    return entry_at(read_address(house.service.listens), "ada")


async def opened(entry: Entry, holder: str = "kernel-1") -> Connection:
    return await open_connection(entry, holder=holder, user="ada", timeout=PATIENCE_SECONDS)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(0.001)


def taken_by(house: Served) -> list[ask.Request]:
    """Return the list of all requests that the engine takes from here on, but for those of every connection."""
    taken: list[ask.Request] = []
    receive = house.clients.receive

    def note(
        peer: bytes, request: ask.Request, answer: Callable[[told.Reply], None], person: str | None, known_as: Any
    ) -> None:
        if not isinstance(request, ask.Hello | ask.Ping):
            taken.append(request)
        receive(peer, request, answer, person, known_as)

    house.clients.receive = note
    return taken
