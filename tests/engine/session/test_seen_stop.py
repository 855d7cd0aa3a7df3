"""A request that names the stop its asker sees is refused, and changes nothing, once the session stands elsewhere."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import torch

from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import StopIdentity
from tests.engine.desk import Desk

PROMPT = (5, 9, 23, 7)
OF_EDITS = {ask.EnableEdit}  # means something where there is an edit: tests/engine/requests/test_switching.py
KINDS = [kind for kind in ask.StopRequest.__subclasses__() if kind not in OF_EDITS]
MOVES = {ask.Resume, ask.Step, ask.Back}
MORE: dict[Any, dict[str, Any]] = {ask.ApplyEdit: {"edit": Scale(factor=0.5)}, ask.Fork: {"name": "fork"}}


def order(kind: Any, stop: StopIdentity | None) -> ask.Request:
    return kind(session="a", stop=stop, **MORE.get(kind, {}))


@pytest.fixture
def desk(llama: Desk) -> Desk:
    llama.open("a")
    llama.stop_at("resid_post.2", "step == 0")
    return llama


def stands(desk: Desk) -> StopIdentity:
    stop = desk.session().stop_identity
    assert stop is not None
    return stop


def unmoved(desk: Desk) -> Any:
    return msgspec.structs.replace(desk.ask(ask.Describe(session="a")).session, idle_seconds=0.0)


def test_whatever_moves_or_changes_a_stop_can_name_it(llama: Desk) -> None:
    assert {*KINDS} == MOVES | {ask.ApplyEdit, ask.RevertEdits, ask.Fork, ask.ResumeWith}
    named = {kind for kind in llama.engine.handlers.requests if issubclass(kind, ask.StopRequest)}
    assert named == {*ask.StopRequest.__subclasses__()}


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_step_of_somebody_else_it_is_refused_and_nothing_changes(desk: Desk, kind: Any) -> None:
    seen = desk.run(PROMPT).stop
    desk.step()
    before, value = unmoved(desk), desk.value()
    with pytest.raises(IllegalMove) as refused:
        desk.ask(order(kind, seen))
    assert str(refused.value) == (
        "Session 'a' has moved on meanwhile and stands at resid_post.3, step 0: the stop you see is gone."
    )
    assert unmoved(desk) == before
    assert torch.equal(desk.value(), value)
    desk.ask(order(kind, stands(desk)))


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_edit_of_somebody_else_it_is_refused_until_one_has_looked_again(desk: Desk, kind: Any) -> None:
    desk.run(PROMPT)
    seen = desk.step().stop
    desk.edit()
    before = unmoved(desk)
    with pytest.raises(IllegalMove, match=r"^Session 'a' was edited meanwhile: the stop you see is gone\. Look again"):
        desk.ask(order(kind, seen))
    assert unmoved(desk) == before
    desk.ask(order(kind, stands(desk)))


def test_after_the_end_or_while_it_runs_it_says_so(desk: Desk) -> None:
    seen = desk.run(PROMPT).stop
    desk.resume(free=True)
    with pytest.raises(IllegalMove, match="moved on meanwhile and is idle: the stop you see is gone"):
        desk.ask(order(ask.Step, seen))
    replies: list[Any] = []
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=8, ignore_eos=True, free=True), replies)
    desk.engine.tick()
    with pytest.raises(IllegalMove, match="moved on meanwhile and is running: the stop you see is gone"):
        desk.ask(order(ask.Step, seen))
    desk.settle()


@pytest.mark.parametrize("seed", range(2))
def test_of_two_that_move_one_session_each_moves_only_what_it_sees(desk: Desk, seed: int) -> None:
    """Each client looks now and then; its moves are carried out exactly if the stop it saw still stands."""
    chance = random.Random(seed)
    desk.run(PROMPT)
    sees = [stands(desk)] * 2
    done = refused = 0
    for _ in range(60):
        who = chance.randrange(2)
        if desk.session().state != "paused":
            desk.run(PROMPT)
        if chance.random() < 0.4:
            sees[who] = stands(desk)
        before, kind = unmoved(desk), chance.choice([kind for kind in KINDS if kind is not ask.Fork])
        if kind is ask.Back and not desk.session().history.present:
            continue
        try:
            desk.ask(order(kind, sees[who]))
        except IllegalMove:
            refused += 1
            assert sees[who] != before.stop
            assert unmoved(desk) == before
        else:
            done += 1
            assert sees[who] == before.stop
    assert min(done, refused) > 5
