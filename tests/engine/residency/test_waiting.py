"""Queued requests to a session that is away, or on its way: each answered once, in order; no other session waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from djinn_jupyter.wire.replies import Closed, Failed, Finished, Inspected, Paused
from tests.engine.desk import ME, Desk, tokens
from tests.engine.residency.evicting import PROMPT, held, nothing_left, post, until_idle


def test_who_needs_the_bytes_waits_for_them_and_others_do_not(desk: Desk) -> None:
    desk.stop_at(4)
    stop = desk.run(PROMPT, 3)
    desk.swap_out()
    mover = held(desk)
    looks = post(desk, ask.Inspect(session="a"))
    assert not looks
    assert desk.describe().residency == "loading"
    assert post(desk, ask.Describe(session="a"))[0].session.stopped_at == stop.site
    desk.open("b")
    assert isinstance(desk.run(PROMPT, 2, "b"), Finished)
    assert not looks
    mover.finish()
    until_idle(desk)
    assert isinstance(looks[0], Inspected)
    assert desk.session().residence.last_transfer.cause == "needed"


def test_letters_are_answered_in_their_order(desk: Desk) -> None:
    desk.run(PROMPT, 2)
    desk.swap_out()
    mover = held(desk)
    runs = post(desk, ask.Run(session="a", tokens=(5,), max_new_tokens=50, extend=True, ignore_eos=True))
    pausing = post(desk, ask.Pause(session="a"))
    assert not runs
    mover.finish()
    until_idle(desk)
    assert pausing[0].was_running
    assert isinstance(runs[0], Paused)


def test_a_session_that_is_leaving_is_called_back(desk: Desk) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    mover = held(desk)
    desk.engine.residency.swapping.swap_out(desk.session(), "host", "idleness")
    assert desk.describe().residency == "storing"
    assert isinstance(post(desk, ask.Resume(session="a", free=True))[0], Finished), (
        "at once, with the copies still under way"
    )
    mover.finish()
    until_idle(desk)
    desk.open("b")
    assert desk.outcome(desk.run(PROMPT, 3, "b"), "b") == desk.outcome(desk.run(PROMPT, 3, "a", free=True))


def test_a_copy_that_was_overtaken_does_not_count(desk: Desk) -> None:
    """The session is written while it is stored: the tier's copy is stale and is thrown away."""
    desk.run(PROMPT, 1)
    mover = held(desk)
    desk.engine.residency.swapping.write_through(desk.session())
    desk.run((5,), 2, extend=True)
    mover.finish()
    until_idle(desk)
    desk.engine.tiers.mover = desk.engine.mover
    assert desk.describe().dirty_bytes > 0
    before = desk.logits()
    desk.swap_out()
    assert torch.equal(desk.logits(), before)


def test_a_new_prompt_does_not_wait_for_the_old_one(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    desk.swap_out("a", "disk")
    held(desk)
    assert isinstance(post(desk, ask.Run(session="a", tokens=PROMPT, max_new_tokens=2))[0], Finished)
    assert desk.describe().residency == "resident"


@pytest.mark.parametrize("moment", ["storing", "loading"])
def test_a_session_closed_on_its_way_leaves_nothing(desk: Desk, moment: str) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    if moment == "loading":
        desk.swap_out()
    mover = held(desk)
    replies = post(desk, ask.SwapOut(session="a") if moment == "storing" else ask.Inspect(session="a"))
    assert isinstance(post(desk, ask.Close(session="a"))[0], Closed)
    assert isinstance(replies[0], Failed)
    desk.engine.check_invariants()
    mover.finish()
    assert nothing_left(desk)
    desk.engine.check_invariants()


def test_a_running_session_does_not_leave(desk: Desk) -> None:
    replies: list[Any] = []
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=20, ignore_eos=True), replies)
    desk.engine.tick()
    with pytest.raises(IllegalMove, match="is running"):
        desk.swap_out()
    while not replies:
        desk.engine.tick()
    assert isinstance(replies[0], Finished)


def test_a_value_is_patched_from_a_session_that_is_away(desk: Desk) -> None:
    for name in "bc":
        desk.open(name)
        desk.stop_at(4, name=name)
        desk.run(tokens(40, seed=3) if name == "b" else PROMPT, 3, name)
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    desk.edit(PatchFrom(session="b"))
    expected = desk.outcome(desk.resume(free=True))
    desk.swap_out("b", "disk")
    desk.edit(PatchFrom(session="b"), "c")
    assert desk.outcome(desk.resume("c", free=True), "c") == expected
    assert desk.session("b").residence.busy == 0


def test_the_answer_comes_once_for_each_letter(desk: Desk) -> None:
    """A flood of requests to a session that keeps leaving."""
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    for turn in range(12):
        replies: list[Any] = []
        request = [ask.SwapOut(session="a"), ask.Inspect(session="a"), ask.SwapOut(session="a", tier="disk")][turn % 3]
        desk.engine.submit(request, ME, replies.append)
        while not replies:
            desk.engine.tick() or desk.engine.mailbox.wait(0.01)
        assert len(replies) == 1
    desk.settle()


@pytest.mark.parametrize("asked", [ask.RevertEdits(session="a"), ask.Back(session="a", count=99, by="token")])
def test_the_end_of_a_queue_is_a_change_for_those_that_wait_for_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, asked: ask.Request
) -> None:
    """Its session may be evicted from then on: no job begins or ends that would say so."""
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    desk.swap_out()
    desk.open("b")
    mover, residency, turns = held(desk), desk.engine.residency, desk.engine.turns
    replies, blocked, advance = post(desk, asked), list[Any](), turns.advance_next

    def advance_next() -> bool:
        if desk.session().residence.present and not replies:
            assert residency.find(desk.session("b"), 1)
            blocked.append(lambda before=residency.changes: residency.changes == before)
            assert blocked[0](), "the queue of the other is a reason to wait"
        return advance()

    monkeypatch.setattr(turns, "advance_next", advance_next)
    advanced, advance_all = list[int](), residency.swapping.advance_all
    monkeypatch.setattr(residency.swapping, "advance_all", lambda: advanced.append(len(blocked)) or advance_all())
    mover.finish()
    until_idle(desk)
    assert replies
    assert len(blocked) == 1
    assert not blocked[0]()
    assert advanced[-1] == 1, "moves that wait for room look again too"
