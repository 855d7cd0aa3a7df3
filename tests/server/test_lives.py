"""Engines in processes of their own come, die and hang under an open window. They serve the fake, the rest is real."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire.registry import Entry
from tests.engines import end_all
from tests.process.nursery import spawn
from tests.server.jupyter import Jupyter, Window, jupyter_server

pytestmark = pytest.mark.alone

IDLE_SECONDS = 3.0  # more than passes, on a busy machine, between an engine's being ready and its starter
SITE = Path(__file__).parents[1] / "process" / "fake_site"


@pytest.fixture
async def jupyter(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jupyter]:
    """A server, and engine processes that serve the fake; any engine left at the end is ended."""
    monkeypatch.setattr(starting, "_spawn", spawn)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(Path(__file__).parents[2])]))
    async with jupyter_server(root) as server:
        yield server
    for entry in running_engines():
        os.kill(entry.pid, signal.SIGCONT)
    end_all()


async def start(model: str, window: Window, **options: Any) -> Entry:
    """Start an engine and wait until the window sees that it can be spoken to."""
    entry = (await asyncio.to_thread(dj.load, model, **options)).entry
    await window.until_seen(lambda engines: engines.get(entry.id, {}).get("found", {}).get("state") == "ready")
    return entry


async def test_a_killed_engine_goes_with_its_reason_and_its_successor_appears(jupyter: Jupyter) -> None:
    window = await jupyter.listen()
    entry = await start("fake", window)
    assert (await jupyter.ask(entry.id, "Open", session="paris"))[0] == 200
    status, _ = await jupyter.ask(entry.id, "Run", session="paris", tokens=[1], max_new_tokens=10_000_000)
    assert status == 202
    os.kill(entry.pid, signal.SIGKILL)
    outcome = await window.until(lambda message: message["live"] == "outcome")
    assert outcome["reply"]["code"] == "EngineUnavailable"
    await window.until_seen(lambda engines: entry.id not in engines)
    (reason,) = [m["gone"][entry.id] for m in window.messages if m["live"] == "delta" and m["gone"]]
    assert reason.startswith(f"The engine of fake (process {entry.pid}) has ended; the next load starts a new one, and")
    assert (await jupyter.ask(entry.id, "Ping"))[0] == 404
    successor = await start("fake", window)
    assert successor.pid != entry.pid
    assert list(window.engines) == [successor.id]
    assert (await jupyter.ask(successor.id, "Describe", session="paris"))[0] == 404
    await window.close()


async def test_an_engine_that_hangs_holds_no_other_up(jupyter: Jupyter, root: Path) -> None:
    window = await jupyter.listen()
    hung, well = await start("fake", window), await start("fake", window, dtype="bfloat16")
    async with jupyter_server(root, ask_seconds=0.5) as hasty:
        assert hung.id in {engine["id"] for engine in await hasty.engines()}
        os.kill(hung.pid, signal.SIGSTOP)
        while psutil.Process(hung.pid).status() != psutil.STATUS_STOPPED:
            pass
        status, failed = await hasty.ask(hung.id, "Ping")
        assert (status, failed["code"]) == (504, "EngineUnavailable")
    for name in ("a", "b", "c"):
        assert (await jupyter.ask(well.id, "Open", session=name))[0] == 200
        await window.until_seen(lambda engines, name=name: name in engines[well.id]["sessions"])
    os.kill(hung.pid, signal.SIGCONT)
    assert (await jupyter.ask(hung.id, "Open", session="d"))[0] == 200
    await window.until_seen(lambda engines: "d" in engines[hung.id]["sessions"])
    await window.close()


async def test_an_engine_that_only_servers_look_at_ends_when_it_is_idle(jupyter: Jupyter) -> None:
    window = await jupyter.listen()
    entry = await start("fake", window, idle_seconds=IDLE_SECONDS)
    await asyncio.to_thread(loading._channels.close)
    await window.until_seen(lambda engines: entry.id not in engines)
    assert [m["gone"] for m in window.messages if m["live"] == "delta" and m["gone"]] == [{entry.id: ""}]
    await window.close()
