"""Persons with keys: anna and bert are admitted, eve is not. This user is on both sides."""

from __future__ import annotations

from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.registry import Entry
from tests.engines import admit
from tests.process.served import Served


def admitted() -> KeyFolder:
    """Draw the keys, admit two of them, and trust the engines here."""
    own.draw_own("eve")
    return admit("anna", "bert")


def entry_of(house: Served, key: str | None) -> Entry:
    return entry_at(read_address(house.service.listens), key)


async def opened(house: Served, key: str, holder: str = "kernel-1") -> Connection:
    return await open_connection(entry_of(house, key), holder=holder, user="root")
