"""Rows of a batch that meet: how they wait for each other, and the room that their columns have."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.passes import columns
from djinn_jupyter.engine.session import shared_prompts, sharing
from djinn_jupyter.engine.session.shared_prompts import driven
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.session.test_sharing import run_at_once
from tests.families import build


def test_columns_have_room_for_the_tokens_to_come_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    fill = columns.Columns.fill

    def noted(self: columns.Columns, caches: Any) -> None:
        made.append(self.capacity)
        fill(self, caches)

    desk = build_desk(build("llama", layers=2))
    run_at_once(desk, mode="fast", prompts=[tokens(5, seed=1), tokens(9, seed=2)], new=2)  # the trial
    monkeypatch.setattr(columns.Columns, "fill", noted)
    rows = run_at_once(desk, mode="fast", prompts=[tokens(5, seed=1), tokens(9, seed=2)], new=4)
    assert made == [9 + 3]  # the last token of a run begins no pass
    assert [row.shared for row in rows] == [4, 4]
    assert columns.capacity_for([5, 9], 1000) == 9 + columns.ROOM
    desk.close_all()


def gather_three(llama: Desk, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have three runs begin at a clock of ours; the list of their replies."""
    monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=clock))
    replies: list[Any] = []
    for number in range(3):
        llama.open(f"s{number}")
        llama.post(ask.Run(session=f"s{number}", tokens=tokens(9, seed=number), max_new_tokens=1, mode="fast"), replies)
    return replies


def come_to_rest(desk: Desk) -> None:
    """Tick until the engine has nothing to do."""
    assert any(not desk.engine.tick() for _ in range(100))


def test_runs_that_gather_leave_the_engine_nothing_to_do_until_none_has_come_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread then sleeps, and the one that reads the requests of the other rows has Python's lock."""
    llama, now = desk_of("llama"), 0.0
    assert llama.engine.due_in == math.inf
    replies = gather_three(llama, lambda: now, monkeypatch)
    come_to_rest(llama)
    assert all(job.waits for job in llama.engine.scheduler.jobs)
    assert llama.engine.due_in == sharing.QUIET_S
    now = 1.0
    assert llama.engine.due_in == 0.0
    while len(replies) < 3:
        assert llama.engine.tick()
    assert [reply.shared for reply in replies] == [1, 1, 1]
    assert llama.engine.due_in == math.inf
    llama.close_all()


def test_a_run_that_comes_while_others_gather_is_waited_for_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    llama, now = desk_of("llama"), 0.0
    replies = gather_three(llama, lambda: now, monkeypatch)
    come_to_rest(llama)
    now = sharing.QUIET_S / 2
    llama.open("late")
    llama.post(ask.Run(session="late", tokens=tokens(9, seed=9), max_new_tokens=1, mode="fast"), replies)
    come_to_rest(llama)
    now = sharing.QUIET_S
    assert not llama.engine.tick()
    assert llama.engine.due_in == pytest.approx(sharing.QUIET_S / 2)
    now = 1.0
    while len(replies) < 4:
        llama.engine.tick()
    assert [reply.shared for reply in replies] == [1, 1, 1, 1]
    llama.close_all()


def test_a_run_that_is_closed_while_it_gathers_with_others_leaves_them_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is the one that looks at the clock."""
    llama = desk_of("llama")
    replies = gather_three(llama, lambda: 0.0, monkeypatch)
    come_to_rest(llama)
    llama.close("s0")
    assert llama.engine.due_in == math.inf
    while len(replies) < 3:
        llama.engine.tick()
    assert sorted(getattr(reply, "shared", 0) for reply in replies) == [0, 1, 1]
    llama.close_all()


def test_a_shared_prompt_gives_way_to_no_run_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To one that is ready it does: `test_a_run_that_comes_during_a_layer_has_its_turn_before_the_next`."""
    llama, slices = desk_of("llama"), 0
    prompts = [tokens(9, seed=seed) for seed in range(3)]
    run_at_once(llama, mode="fast", prompts=prompts, new=1)  # the trial
    llama.close_all()

    def counted(step: Any, should_yield: Any) -> Any:
        nonlocal slices
        shared = driven(step, should_yield)
        while True:
            try:
                yield next(shared)
            except StopIteration as done:
                return done.value
            slices += 1

    monkeypatch.setattr(shared_prompts, "driven", counted)
    assert [row.shared for row in run_at_once(llama, mode="fast", prompts=prompts, new=1)] == [1, 1, 1]
    assert slices <= 1  # the run that looked at the clock learns that another leads; there are 8 layers
    llama.close_all()


# --- waiting for room -------------------------------------------------------------------------------------------------


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
