"""A move of the editor is for the stop that the editor shows, also where the session moved before that was heard."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.tree import ModelTree

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
