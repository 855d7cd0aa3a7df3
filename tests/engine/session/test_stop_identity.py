"""Every stop has a number that no other stop of a session has, and each value read names its stop."""

from __future__ import annotations

import random
from typing import Any

import pytest

from djinn_jupyter.engine.session import session as sessions
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import Paused, SessionEdited, SessionFinished, SessionPaused
from tests.engine.desk import ME, Desk

PROMPT = (5, 9, 23, 7)


@pytest.fixture
def desk(llama: Desk) -> Desk:
    llama.open("a")
    llama.stop_at("resid_post.2", "step < 2")
    llama.events.clear()
    return llama


def stands(desk: Desk, name: str = "a") -> StopIdentity:
    stop = desk.ask(ask.Describe(session=name)).session.stop
    assert isinstance(stop, StopIdentity)
    assert stop.session == name
    return stop


def test_another_prompt_that_meets_the_same_breakpoint_is_another_stop(desk: Desk) -> None:
    first, second = desk.run(PROMPT), desk.run(PROMPT)
    assert (first.site, first.step, first.tokens, first.history_length) == (
        (second.site, second.step, second.tokens, second.history_length)
    )
    assert first.stop.number < second.stop.number


def test_an_edit_is_the_same_stop_in_another_edition(desk: Desk) -> None:
    seen = [desk.run(PROMPT).stop]
    for change in (desk.edit, lambda: desk.ask(ask.RevertEdits(session="a")), desk.edit):
        seen.append(change().stop)
        assert stands(desk) == seen[-1]
    assert {stop.number for stop in seen} == {seen[0].number}
    assert [stop.edition for stop in seen] == sorted({stop.edition for stop in seen})


def test_what_is_read_says_what_it_was_read_from(desk: Desk) -> None:
    desk.run(PROMPT)
    here = desk.edit().stop
    look = ask.Lens(session="a", positions=(-1,))
    read = [desk.ask(look), desk.logits_ahead(), desk.ask(ask.ReadStop(session="a"))]
    read += [desk.ask(ask.Inspect(session="a")).snapshot, desk.ask(ask.Evaluate(session="a", expression="norm"))]
    assert {one.stop for one in read} == {here}
    done = desk.resume(free=True)
    assert done.stop.number > here.number
    assert desk.ask(ask.ReadLogits(session="a")).stop == done.stop == stands(desk)


def test_events_say_it_too(desk: Desk) -> None:
    stop = desk.run(PROMPT).stop
    edited = desk.edit().stop
    done = desk.resume(free=True).stop
    back = desk.back().stop
    told = [e for e in desk.events if isinstance(e, SessionPaused | SessionEdited | SessionFinished)]
    assert [(type(event), event.stop) for event in told] == [
        (SessionPaused, stop),
        (SessionEdited, edited),
        (SessionFinished, done),
        (SessionPaused, back),
    ]


def test_a_session_that_leaves_and_comes_back_stands_where_it_stood(desk: Desk) -> None:
    stop = desk.run(PROMPT).stop
    desk.swap_out()
    assert stands(desk) == stop
    desk.swap_in()
    assert stands(desk) == stop == desk.ask(ask.ReadStop(session="a")).stop


def test_nothing_stands_while_it_runs(desk: Desk) -> None:
    desk.clear()
    replies: list[Any] = []
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=8, ignore_eos=True), replies)
    desk.engine.tick()
    assert desk.session().state == "running"
    assert desk.describe().stop is None
    desk.settle()
    assert replies[0].stop == stands(desk)


@pytest.mark.parametrize("seed", range(3))
def test_no_two_readings_with_one_identity_differ(desk: Desk, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session and its forks move at random, while the clock goes forwards, stands and goes back."""
    chance = random.Random(seed)
    now = 10**15
    monkeypatch.setattr(sessions.time, "time_ns", lambda: now)
    values: dict[StopIdentity, list[float]] = {}
    latest: dict[str, int] = {}
    forks = 0
    for _ in range(80):
        now += chance.choice((0, 5_000_000, -2_000))
        name = chance.choice([*desk.engine.sessions])
        move = chance.choice(("run", "step", "back", "edit", "revert", "resume", "swap", "fork", "open"))
        stopped = desk.session(name).state == "paused"
        match move:
            case "run":
                desk.run((chance.randrange(3, 100), *PROMPT), name=name)
            case "fork" if forks < 4:
                forks += 1
                desk.fork(f"f{forks}", name)
                name = f"f{forks}"
            case "step" if stopped:
                desk.step(chance.choice((1, 3)), name=name)
            case "resume" if stopped:
                desk.resume(name)
            case "back" if stopped and desk.session(name).history.present:
                desk.back(name=name)
            case "edit" if stopped:
                desk.edit(name=name)
            case "revert" if stopped:
                desk.ask(ask.RevertEdits(session=name))
            case "swap":
                desk.swap_out(name)
            case "open":
                desk.close(name)
                desk.open(name)
                desk.stop_at("resid_post.2", "step < 2", name)
        if desk.session(name).state == "paused":
            read = desk.ask(ask.ReadStop(session=name))
            assert isinstance(read, Paused)
            assert values.setdefault(read.stop, [*read.norms, *read.tokens]) == [*read.norms, *read.tokens]
            assert read.stop.edition >= latest.get(name, 0)
            latest[name] = read.stop.edition
    assert len(values) > 10
    assert len({(stop.session, stop.edition) for stop in values}) == len(values)


def test_one_session_of_a_holder_is_in_use_and_none_when_the_holder_has_gone(desk: Desk) -> None:
    def in_use() -> set[str]:
        return {name for name in "ab" if desk.ask(ask.Describe(session=name)).session.in_use}

    desk.fork("b")
    assert in_use() == set()
    desk.ask(ask.Note(session="a", activity="in_use"))
    assert in_use() == {"a"}
    desk.ask(ask.Note(session="b", activity="in_use"))
    assert in_use() == {"b"}
    desk.engine.lose_holder(ME)
    desk.settle()
    assert in_use() == set()
