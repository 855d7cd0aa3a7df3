"""The bridge of JupyterLab's debugger panel to an adapter: every request has a reply, also one that comes too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.panel import LEFT, Bridge
from tests.waiting import SECONDS


def reply_to(asked: Any) -> dict[str, Any]:
    async def awaited() -> dict[str, Any]:
        return dict(await asyncio.wait_for(asked, SECONDS))

    return asyncio.run(awaited())


def bridged(engine: RemoteEngine) -> tuple[Bridge, threading.Thread]:
    before = set(threading.enumerate())
    state: Any = SimpleNamespace(present=None, held={})
    bridge = Bridge(state, engine, told=lambda *_: None, answered=lambda *_: None)
    [thread] = [one for one in set(threading.enumerate()) - before if one.name == "djinn-debugger"]
    return bridge, thread


THREADS: dict[str, Any] = {"seq": 7, "type": "request", "command": "threads"}
ASKED: dict[str, Callable[[Bridge], Any]] = {
    "a request": lambda bridge: bridge.ask(THREADS, {}),
    "a picture": lambda bridge: bridge.picture({}),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_is_asked_after_the_end_is_refused(engine: RemoteEngine, asked: Callable[[Bridge], Any]) -> None:
    bridge, thread = bridged(engine)
    assert reply_to(bridge.ask(THREADS, {}))["success"]
    bridge.end()
    thread.join(SECONDS)
    reply = reply_to(asked(bridge))
    assert (reply["success"], reply["message"]) == (False, LEFT)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_is_queued_behind_the_end_is_refused(engine: RemoteEngine, asked: Callable[[Bridge], Any]) -> None:
    bridge, thread = bridged(engine)
    held = threading.Event()
    bridge.follow(lambda: [held.wait(SECONDS)].clear())
    bridge.end()

    async def late() -> dict[str, Any]:
        waiting = asyncio.ensure_future(asked(bridge))
        await asyncio.sleep(0)  # it has been posted behind the end
        held.set()
        return dict(await waiting)

    reply = reply_to(late())
    assert (reply["success"], reply["message"]) == (False, LEFT)
    thread.join(SECONDS)
