"""A client that shows one session: its breakpoints are those of the session it works with, and no other's."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.wire.replies import SessionClosed


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
