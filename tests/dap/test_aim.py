"""What a click in the editor aims at, which handler a command has, and the bridge of the panel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap import protocol
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.protocol import CAPABILITIES, Body, CommandHandlers, Request, handles
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.editors.panel import LEFT, Bridge
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.replies import SessionClosed
from tests.waiting import SECONDS


def test_a_click_in_the_gutter_arms_the_session_in_use_and_says_which(engine: RemoteEngine) -> None:
    """The session in use changes to another, back, and to none."""
    sessions = [engine.session(name, fresh=True) for name in ("first", "second")]
    tree = ModelTree(engine.description, engine.modules())
    using: list[str | None] = ["second"]
    said: list[dict[str, Any]] = []
    adapter = Adapter(said.append, in_use=lambda: using[0])
    adapter.debuggee.work_with(engine, tree, lambda event: None)
    for session in sessions:
        adapter.debuggee.follow(session)

    def click(*sites: str) -> dict[str, Any]:
        lines = [{"line": tree.line_of(site)} for site in sites]
        arguments = {"source": tree.source, "breakpoints": lines}
        adapter.receive({"type": "request", "seq": 1, "command": "setBreakpoints", "arguments": arguments})
        adapter.step(20.0)
        return said.pop()

    def armed() -> list[list[str]]:
        return [[point.site for point in session.breakpoints()] for session in sessions]

    assert [point["message"] for point in click("resid_post.2")["body"]["breakpoints"]] == ["Stops session second."]
    assert armed() == [[], ["resid_post.2"]]
    using[0] = "first"
    click("resid_post.2", "resid_post.3")
    assert armed() == [["resid_post.2", "resid_post.3"], ["resid_post.2"]]
    click("resid_post.3")
    assert armed() == [["resid_post.3"], ["resid_post.2"]]
    using[0] = None
    assert "works with no session yet; run a prompt first" in click("resid_post.1")["message"]
    adapter.end()
    adapter.step(20.0)
    assert armed() == [[], []]


def test_where_the_first_session_is_closed_the_one_in_use_is_still_shown(engine: RemoteEngine) -> None:
    sessions = [engine.session(name, fresh=True) for name in ("gone", "stays", "later")]
    said: list[dict[str, Any]] = []
    adapter = Adapter(said.append, in_use=lambda: "stays")
    adapter.debuggee.work_with(engine, ModelTree(engine.description, engine.modules()), lambda event: None)
    gone, stays = (adapter.debuggee.follow(session) for session in sessions[:2])
    adapter.events.hear(SessionClosed(session="gone"))
    assert [one["event"] for one in said] == ["thread"]
    assert said[0]["body"] == {"reason": "exited", "threadId": gone.number}
    assert adapter.debuggee.aimed_at is stays
    adapter.events.hear(SessionClosed(session="stays"))
    assert adapter.debuggee.follow(sessions[2]).number not in (gone.number, stays.number)
    adapter.debuggee.let_go()


NEEDED = {
    "supportsConfigurationDoneRequest": "configurationDone",
    "supportsFunctionBreakpoints": "setFunctionBreakpoints",
    "supportsBreakpointLocationsRequest": "breakpointLocations",
    "supportsSetVariable": "setVariable",
    "supportsStepBack": "stepBack",
    "supportsCompletionsRequest": "completions",
    "supportsLoadedSourcesRequest": "loadedSources",
    "supportsTerminateRequest": "terminate",
}
ALWAYS = frozenset(
    "initialize launch attach disconnect setBreakpoints setExceptionBreakpoints threads stackTrace scopes variables "
    "evaluate source continue next stepIn stepOut reverseContinue pause".split()
)


class Part:
    @handles("next", protocol.OfThread)
    def next(self, given: protocol.OfThread, request: Request) -> Body:
        return {"thread": given.thread_id}


def test_every_command_has_one_handler_which_is_given_its_arguments_read() -> None:
    promised = {command for capability, command in NEEDED.items() if CAPABILITIES[capability]}
    assert Adapter(lambda message: None).handlers.commands == promised | ALWAYS
    handlers = CommandHandlers(Part())
    assert handlers.answer(Request(number=1, command="next", arguments={"threadId": 7})) == {"thread": 7}
    with pytest.raises(UsageError, match="threadId"):
        handlers.answer(Request(number=2, command="next", arguments={}))
    with pytest.raises(UsageError, match="no command 'goto'"):
        handlers.answer(Request(number=3, command="goto", arguments={}))
    with pytest.raises(TypeError, match="next has two handlers"):
        CommandHandlers(Part(), Part())


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
