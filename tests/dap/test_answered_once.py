"""Each request is answered once, and the adapter goes on, also where a session or an engine ends in between."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap import debuggee as targets
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.debuggee import Debuggee, DebugThread, ThreadMove
from djinn_jupyter.editors.dap.protocol import Attach, Launch
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.wire.replies import SessionPaused
from tests.waiting import SECONDS


class Conversation:
    """An adapter whose work is done step by step."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.adapter = Adapter(self.said.append)
        self._number = 0

    def ask(self, command: str, **arguments: Any) -> list[bool]:
        """Send a request, have it handled, and return the successes and failures that answered it."""
        self._number += 1
        self.adapter.receive({"type": "request", "seq": self._number, "command": command, "arguments": arguments})
        self.adapter.step(0.0)
        return self.answers(self._number)

    def answers(self, number: int) -> list[bool]:
        return [one["success"] for one in self.said if one.get("request_seq") == number]

    def stands(self, session: RemoteSession, engine: RemoteEngine) -> DebugThread:
        """Put it at a stop of the session, without the engine's events."""
        self.adapter.debuggee.work_with(engine, ModelTree(engine.description, engine.modules()), lambda event: None)
        thread = self.adapter.debuggee.follow(session)
        thread.state = "paused"
        return thread


@pytest.fixture
def session(engine: RemoteEngine) -> RemoteSession:
    made = engine.session("once", fresh=True)
    made.breakpoint("resid_post.2")
    assert isinstance(made.run("The capital of France is"), Paused)
    return made


def test_configuration_done_during_a_run_is_refused_once(engine: RemoteEngine, session: RemoteSession) -> None:
    talk = Conversation()
    talk.adapter.debuggee.plan = Launch(model="demo", prompt="x")
    talk.stands(session, engine).move = ThreadMove(name="run")
    assert talk.ask("configurationDone") == [False]


def test_configuration_done_is_answered_once_where_a_session_was_closed(
    engine: RemoteEngine, session: RemoteSession
) -> None:
    talk = Conversation()
    talk.adapter.debuggee.plan = Attach()
    talk.stands(session, engine)
    session.close()
    assert talk.ask("configurationDone") == [True]


def test_a_stop_of_a_session_that_is_closed_by_now_is_not_shown(engine: RemoteEngine, session: RemoteSession) -> None:
    talk = Conversation()
    talk.stands(session, engine)
    identity = session.stop.reply.stop
    session.close()
    event = SessionPaused(session=session.name, stop=identity, site="resid_post.2", step=0, reason="breakpoint")
    talk.adapter.queue.post(lambda: talk.adapter.events.hear(event))
    talk.adapter.step(0.0)
    assert talk.said == []


def test_work_that_fails_is_reported_and_the_next_is_done() -> None:
    talk = Conversation()
    for error in (EngineUnavailable("The engine has ended."), KeyError("a slip")):
        talk.adapter.queue.post(lambda error=error: _raise(error))
        talk.adapter.step(0.0)
    assert [one["body"]["output"] for one in talk.said] == [
        "The engine has ended.\n",
        "The adapter met an error it does not know (KeyError('a slip')).\n",
    ]
    assert talk.ask("initialize") == [True]


def test_a_launch_is_refused_where_the_engine_ends_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def sessions() -> None:
        raise EngineUnavailable("The engine has ended.")

    ended = SimpleNamespace(channel=SimpleNamespace(listen=lambda session, hear: lambda: None), sessions=sessions)
    talk = _launching(monkeypatch, lambda *_: (ended, None, None))
    talk.adapter.step(10.0)
    assert talk.answers(1) == [False]
    assert talk.adapter.debuggee.plan is None


def test_a_launch_that_its_client_does_not_wait_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    talk = _launching(monkeypatch, lambda *_: go_on.wait(SECONDS))
    assert talk.ask("disconnect") == [True]
    assert talk.answers(1) == [False]
    go_on.set()


def test_a_session_is_found_while_another_is_followed() -> None:
    """JupyterLab's requests look for the session in use on the control thread; one that raises there has no reply."""
    debuggee = Debuggee()

    class Followed:
        @property
        def name(self) -> str:
            debuggee.follow(SimpleNamespace(name="late"))  # as the adapter's thread does in between
            return "first"

    debuggee.follow(Followed())
    debuggee.follow(SimpleNamespace(name="second"))
    assert debuggee.named("second") is debuggee.threads[2]


def _launching(monkeypatch: pytest.MonkeyPatch, launched: Any) -> Conversation:
    monkeypatch.setattr(targets, "launched", launched)
    talk = Conversation()
    assert talk.ask("launch", model="demo", prompt="x") == []
    return talk


def _raise(error: Exception) -> None:
    raise error
