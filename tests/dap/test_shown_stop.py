"""What the editor shows is of the stop that it names."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.api.edits import scale
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.debuggee import DebugThread
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import EventsMissed, SessionRunning


def named(stop: StopIdentity) -> dict[str, Any]:
    return {"session": stop.session, "number": stop.number, "edition": stop.edition}


class Desk:
    """An adapter at a stop. It hears no event of the engine but those that a test has it hear."""

    def __init__(self, engine: RemoteEngine, session: RemoteSession, stop: Paused) -> None:
        self.said: list[dict[str, Any]] = []
        self.adapter = Adapter(self.said.append)
        self.adapter.debuggee.work_with(engine, ModelTree(engine.description, engine.modules()), lambda event: None)
        self.engine, self.session = engine, session
        self.thread: DebugThread = self.adapter.debuggee.follow(session)
        self.adapter.reports.stopped(self.thread, stop)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        before = len(self.said)
        self.adapter.receive({"type": "request", "seq": 1, "command": command, "arguments": arguments})
        while not (found := [one for one in self.said[before:] if one["type"] == "response"]):
            self.adapter.step(20.0)
        return found[0]

    def body(self, command: str, **arguments: Any) -> dict[str, Any]:
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        return dict(reply["body"])

    def frame(self) -> int:
        return int(self.body("stackTrace", threadId=1)["stackFrames"][0]["id"])

    def scope(self, name: str) -> int:
        scopes = self.body("scopes", frameId=self.frame())["scopes"]
        return int(next(one["variablesReference"] for one in scopes if one["name"] == name))

    def value(self) -> int:
        """The reference of the activation's rows."""
        fields = self.body("variables", variablesReference=self.scope("Activation"))["variables"]
        return int(next(one["variablesReference"] for one in fields if one["name"] == "value"))


@pytest.fixture
def desk(engine: RemoteEngine) -> Any:
    session = engine.session("shown", fresh=True)
    session.breakpoint("resid_post.2")
    stop = session.run("The capital of France is", max_new_tokens=3)
    assert isinstance(stop, Paused)
    made = Desk(engine, session, stop)
    yield made
    made.adapter.debuggee.let_go()


def test_the_event_and_every_reply_name_the_stop(desk: Desk) -> None:
    stop = named(desk.session.stop.reply.stop)
    assert desk.said[0]["event"] == "stopped"
    assert desk.said[0]["body"]["djinnStop"] == stop
    frame = desk.frame()
    assert desk.body("stackTrace", threadId=1)["djinnStop"] == stop
    assert desk.body("scopes", frameId=frame)["djinnStop"] == stop
    assert desk.body("variables", variablesReference=desk.scope("Tokens"))["djinnStop"] == stop
    assert desk.body("evaluate", expression="norm", frameId=frame)["djinnStop"] == stop
    assert desk.body("evaluate", expression="resid_post.1", frameId=frame)["djinnStop"] == stop
    assert desk.body("evaluate", context="repl", expression="effect")["djinnStop"] == stop


def test_a_frame_of_an_earlier_stop_is_not_answered_with_the_present_one(desk: Desk) -> None:
    frame = desk.frame()
    assert desk.frame() == frame
    desk.adapter.reports.stopped(desk.thread, desk.session.step())
    for command, arguments in (("scopes", {}), ("evaluate", {"expression": "norm"})):
        assert "of a stop that is past" in desk.ask(command, frameId=frame, **arguments)["message"]
    assert desk.frame() > frame


def test_a_frame_is_past_also_where_only_an_edit_of_the_next_stop_was_heard(desk: Desk) -> None:
    frame = desk.frame()
    stop = desk.session.step()
    assert isinstance(stop, Paused)
    desk.adapter.reports.edited_elsewhere(desk.thread, stop.reply.stop)
    assert "of a stop that is past" in desk.ask("scopes", frameId=frame)["message"]


def test_a_variable_of_a_stop_that_is_gone_is_not_set(desk: Desk) -> None:
    rows = desk.value()
    desk.session.step()
    reply = desk.ask("setVariable", variablesReference=rows, name="[4]", value="0")
    assert "has moved on meanwhile" in reply["message"]
    assert desk.session.stop.edits == ()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("evaluate", {"expression": "norm"}),
        ("evaluate", {"context": "repl", "expression": "effect"}),
        ("evaluate", {"context": "repl", "expression": "lens"}),
        ("evaluate", {"expression": "resid_post.1"}),
    ],
)
def test_what_was_read_from_another_stop_than_the_one_shown_is_refused(
    desk: Desk, command: str, arguments: dict[str, Any]
) -> None:
    desk.session.step()  # a notebook's, of which the adapter has not heard yet
    assert "has moved on or was edited" in desk.ask(command, **arguments)["message"]


def test_a_fork_is_asked_for_with_the_stop_shown_so_that_the_engine_refuses_another(desk: Desk) -> None:
    desk.session.step()  # however late it comes, before the engine forks
    reply = desk.ask("evaluate", context="repl", expression="fork shown-too")
    assert "has moved on meanwhile and stands at resid_post.3, step 0: the stop you see is gone." in reply["message"]
    forks = [one.name for one in desk.engine.sessions() if one.name == "shown-too"]
    assert forks == []


def test_the_session_scope_is_of_the_stop_shown(desk: Desk) -> None:
    reference = desk.scope("Session")
    desk.session.step()
    assert "has moved on or was edited" in desk.ask("variables", variablesReference=reference)["message"]


def test_rows_that_were_unfolded_before_an_edit_show_what_it_made(desk: Desk) -> None:
    rows = desk.value()
    before = desk.body("variables", variablesReference=rows)
    desk.session.edit(scale(0.0))
    desk.adapter.reports.edited_elsewhere(desk.thread, desk.session.stop.reply.stop)
    after = desk.body("variables", variablesReference=rows)
    assert after["djinnStop"]["edition"] > before["djinnStop"]["edition"]
    assert after["djinnStop"]["number"] == before["djinnStop"]["number"]
    assert all("norm 0" in row["value"] for row in after["variables"])
    assert not any("norm 0" in row["value"] for row in before["variables"])


def test_fields_that_were_read_before_an_edit_are_refused(desk: Desk) -> None:
    lens = desk.body("variables", variablesReference=desk.scope("Logit lens"))["variables"]
    desk.session.edit(scale(0.0))
    desk.adapter.reports.edited_elsewhere(desk.thread, desk.session.stop.reply.stop)
    reply = desk.ask("variables", variablesReference=lens[0]["variablesReference"])
    assert "were read before the stop was edited" in reply["message"]


def test_a_move_is_over_with_its_reply_where_no_event_told_of_its_end(desk: Desk) -> None:
    del desk.said[:]
    assert desk.ask("next", threadId=1)["success"]
    assert [one.get("event") for one in desk.said] == [None, "stopped"]
    assert desk.said[1]["body"]["djinnStop"] == named(desk.session.stop.reply.stop)


def test_a_stop_whose_event_was_missed_is_shown(desk: Desk) -> None:
    desk.session.step()  # a notebook's
    desk.adapter.events.hear(SessionRunning(session=desk.session.name))
    assert desk.thread.state == "running"
    del desk.said[:]
    desk.adapter.events.hear(EventsMissed(session=""))
    assert [one["event"] for one in desk.said] == ["stopped"]
    assert desk.said[0]["body"]["djinnStop"] == named(desk.session.stop.reply.stop)
    desk.adapter.events.hear(EventsMissed(session=""))
    assert len(desk.said) == 1


def test_the_end_of_a_run_whose_event_was_missed_is_told(desk: Desk) -> None:
    desk.session.resume(free=True)
    del desk.said[:]
    desk.adapter.events.hear(EventsMissed(session=""))
    assert desk.thread.state == "idle"
    assert desk.said[0]["body"]["output"] == "\nThe run of shown is over.\n"


def test_a_session_that_was_closed_while_events_were_missed_is_ended(desk: Desk) -> None:
    desk.session.close()
    del desk.said[:]
    desk.adapter.events.hear(EventsMissed(session=""))
    assert [one["event"] for one in desk.said] == ["terminated"]


def test_a_look_reads_figures_and_of_the_values_those_of_the_position_that_is_unfolded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, tuple[int, ...] | None]] = []
    inspect = RemoteSession.inspect

    def recorded(
        session: RemoteSession, site: str, positions: tuple[int, ...] | None = None, *, ahead: bool = False
    ) -> Any:
        read.append((site, positions))
        return inspect(session, site, positions, ahead=ahead)

    monkeypatch.setattr(RemoteSession, "inspect", recorded)
    rows = desk.body("variables", variablesReference=desk.value())["variables"]
    assert [row["name"] for row in rows] == [f"[{position}]" for position in desk.thread.stopped.stop.positions]
    assert read == []
    desk.body("variables", variablesReference=rows[2]["variablesReference"])
    assert read == [(desk.thread.stopped.stop.site, (2,))]


SAID = (
    ("continue", {}),
    ("next", {}),
    ("stepIn", {}),
    ("stepOut", {}),
    ("stepBack", {}),
    ("evaluate", {"context": "repl", "expression": "back"}),
    ("evaluate", {"context": "repl", "expression": "step 2"}),
    ("evaluate", {"context": "repl", "expression": "resume --free"}),
    ("evaluate", {"context": "repl", "expression": "edit scale 0.5"}),
    ("evaluate", {"context": "repl", "expression": "revert"}),
)


@pytest.fixture(scope="module")
def tree(engine: RemoteEngine) -> ModelTree:
    return ModelTree(engine.description, engine.modules())


@pytest.mark.parametrize(("command", "arguments"), SAID)
def test_what_the_editor_asks_of_a_stop_that_is_gone_is_refused(
    engine: RemoteEngine, tree: ModelTree, command: str, arguments: dict[str, Any]
) -> None:
    session = engine.session("seen", fresh=True)
    session.breakpoint("resid_post.2")
    stop = session.run("The capital of France is", max_new_tokens=3)
    assert isinstance(stop, Paused)
    said: list[dict[str, Any]] = []
    adapter = Adapter(said.append)
    adapter.debuggee.work_with(engine, tree, lambda event: None)  # the event of the step is on its way still
    one = adapter.debuggee.follow(session)
    one.arrived(stop)
    session.step()
    adapter.receive({"type": "request", "seq": 1, "command": command, "arguments": {"threadId": 1, **arguments}})
    while not said:
        adapter.step(20.0)
    adapter.debuggee.let_go()
    assert "has moved on meanwhile and stands at resid_post.3, step 0: the stop you see is gone" in said[0]["message"]
    assert one.state == "paused"
    assert session.stop.site == "resid_post.3"
