"""A run that waits for room: what is set meanwhile holds in the pass that it waits to enter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, tokens


def test_a_rule_and_a_breakpoint_set_while_a_run_waits_hold_in_its_next_pass(
    llama: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, forward = [True], llama.engine.runtime.forward
    enter = forward.enter

    def full(frame: Any, *given: Any, **how: Any) -> Any:
        if frame.step == 2 and waits:
            raise SlabFull("no room")
        return enter(frame, *given, **how)

    monkeypatch.setattr(forward, "enter", full)
    monkeypatch.setattr(llama.engine.residency.eviction, "find", lambda *_: True)
    llama.open("a")
    replies: list[Any] = []
    llama.post(ask.Run(session="a", tokens=tokens(5), max_new_tokens=4, ignore_eos=True), replies)
    while len(llama.session().tokens) < 7:
        llama.engine.tick()
        assert not replies
    for _ in range(4):
        llama.engine.tick()
    llama.steer("resid_post.3")
    llama.stop_at("resid_post.5")
    waits.clear()
    llama.engine.residency.room_changed()
    while not replies:
        llama.engine.tick()
    assert (replies[0].site, replies[0].step) == ("resid_post.5", 2)
    stopped = llama.value()
    monkeypatch.undo()
    llama.open("alone")
    llama.stop_at("resid_post.5", "step == 2", name="alone")
    llama.stop_at("resid_pre.0", "step == 2", name="alone")
    llama.run(tokens(5), 4, "alone")
    llama.steer("resid_post.3", name="alone")
    llama.resume("alone")
    assert torch.equal(stopped, llama.value(name="alone"))
