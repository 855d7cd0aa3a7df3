"""Persons with keys: anna and bert are admitted, eve is not. This user is on both sides."""

from __future__ import annotations

from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.registry import Entry
from tests.process.served import Served


def admitted() -> KeyFolder:
    """Draw the keys, admit two of them, and trust the engines here."""
    folder = own.key_folder()
    for name in ("anna", "bert", "eve"):
        own.draw_own(name)
    for name in ("anna", "bert"):
        folder.allow(folder.own(name).public, name)
    folder.trust("127.0.0.1", own.of_engines_here().public)
    return folder


def entry_of(house: Served, key: str | None) -> Entry:
    assert house.service.listens is not None
    return entry_at(read_address(house.service.listens), key)


async def opened(house: Served, key: str, holder: str = "kernel-1") -> Connection:
    return await Connection.open(entry_of(house, key), holder=holder, user="root")
