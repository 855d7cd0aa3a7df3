"""Engines of other machines in the sidebar: those to which a process of this user is attached."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from djinn_jupyter.link.channel import Channels
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.link.registry import registry_folder, running_engines
from djinn_jupyter.remote import addresses
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.server import monitor
from djinn_jupyter.wire.own import process_mark
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.requests import Open
from tests.engines import admit
from tests.process.relay import Relay
from tests.process.served import Served, served
from tests.server.jupyter import Jupyter, jupyter_server


@pytest.fixture
def afar(runtime: Path) -> Iterator[Served]:
    """An engine that admits ada over TCP, and stands in no registry of this machine."""
    admit("ada")
    with served(tcp=True) as serving:
        yield serving


@pytest.fixture
async def jupyter(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jupyter]:
    monkeypatch.setattr(monitor, "LOOK_SECONDS", 0.05)
    async with jupyter_server(root) as server:
        yield server


def entry_of(afar: Served) -> Entry:
    return entry_at(read_address(afar.service.listens), "ada")


async def test_an_engine_afar_is_shown_while_a_notebook_is_attached_to_it(afar: Served, jupyter: Jupyter) -> None:
    notebook, window = Channels(), await jupyter.listen()
    channel = await asyncio.to_thread(notebook.to, entry_of(afar))
    await asyncio.to_thread(channel.ask(Open(session="paris")).result, 60)
    assert running_engines() == ()
    await window.until_seen(lambda engines: any("paris" in one["sessions"] for one in engines.values()))
    (engine,) = window.engines
    found, place = window.engines[engine]["found"], entry_of(afar).place
    assert (found["pid"], found["host"], found["state"]) == (None, place, "ready")
    assert found["load"].endswith(f"--at {place} --key ada")
    assert (await jupyter.ask(engine, "Describe", session="paris"))[0] == 200
    await asyncio.to_thread(notebook.close)
    await window.until_seen(lambda engines: not engines)
    await window.close()


async def test_a_line_that_is_down_is_said_with_what_was_last_known_and_comes_back(
    afar: Served, jupyter: Jupyter
) -> None:
    async with Relay(entry_of(afar)) as relay:
        notebook, window = Channels(), await jupyter.listen()
        channel = await asyncio.to_thread(notebook.to, relay.entry)
        await asyncio.to_thread(channel.ask(Open(session="paris")).result, 60)
        await window.until_seen(lambda engines: any("paris" in one["sessions"] for one in engines.values()))
        before = time.time()
        relay.cut()
        await window.until_seen(lambda engines: any(one["found"]["down_since"] for one in engines.values()))
        (engine,) = window.engines.values()
        assert before <= engine["found"]["down_since"] <= time.time()
        assert engine["found"]["state"] == "ready"
        assert list(engine["sessions"]) == ["paris"]
        await relay.mend()
        await window.until_seen(lambda engines: all(one["found"]["down_since"] is None for one in engines.values()))
        await asyncio.to_thread(notebook.close)
        await window.close()


async def test_two_notebooks_at_one_engine_are_one_engine_and_no_key_is_written(
    afar: Served, jupyter: Jupyter, runtime: Path
) -> None:
    entry, window = entry_of(afar), await jupyter.listen()
    parent = msgspec.structs.replace(entry, pid=os.getppid(), mark=process_mark(os.getppid()) or "")
    notes = [addresses.note_attached(one) for one in (entry, parent)]
    await window.until_seen(lambda engines: [one["found"]["state"] for one in engines.values()] == ["ready"])
    secret = json.loads((runtime / "data" / "djinn" / "keys" / "own" / "ada").read_text())["secret"]
    files = [path for path in registry_folder().iterdir() if path.name.endswith(addresses.SUFFIX)]
    assert len(files) == 2
    assert not [path for path in files if secret in path.read_text() or path.stat().st_mode & 0o77]
    notes[0]()
    await jupyter.extension.monitor.read()
    assert len(window.engines) == 1
    notes[1]()
    await window.until_seen(lambda engines: not engines)
    await window.close()


def test_the_note_of_a_process_that_has_gone_is_removed(afar: Served) -> None:
    entry = entry_of(afar)
    addresses.note_attached(msgspec.structs.replace(entry, mark="0"))
    looked = addresses.Attachments()
    assert looked.look() == {}
    assert not list(registry_folder().glob(f"*{addresses.SUFFIX}"))


def test_a_forked_child_leaves_the_note_of_its_parent(afar: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = Channels()
    channel = channels.to(entry_of(afar))
    with monkeypatch.context() as forked:
        forked.setattr(IoThread, "usable", False)
        channel.close()
    assert list(registry_folder().glob(f"*{addresses.SUFFIX}"))
    channels.close()
    assert not list(registry_folder().glob(f"*{addresses.SUFFIX}"))


def test_a_note_that_cannot_be_written_is_logged_and_stops_no_one(
    afar: Served, caplog: pytest.LogCaptureFixture
) -> None:
    registry_folder().chmod(0o777)
    addresses.note_attached(entry_of(afar))()
    assert f"The sidebar will not show {entry_of(afar).place}" in caplog.text
