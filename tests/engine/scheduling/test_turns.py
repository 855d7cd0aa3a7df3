"""One thread that reads requests between layers: none waits longer than a layer; no bit depends on other sessions.

There is no clock in these tests: time is counted in layers run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.engine.loop import replies as publishing
from djinn_jupyter.engine.loop.mailbox import Holder, Mailbox
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import Sampling
from djinn_jupyter.wire.replies import Closed, Described, Failed, Finished, Paused, Pausing, SessionOpened, TokenSampled
from tests.engine.counting import LayerCount
from tests.engine.desk import ME, Desk, Outcome, build_desk, desk_of, tokens
from tests.engine.plain import generate, plain_of
from tests.families import build

PROMPT = tokens(14)
LONG = tokens(120, seed=2)
NEW = 4


@pytest.fixture(scope="module")
def counted() -> tuple[Desk, LayerCount]:
    """An engine whose layers are counted as they begin."""
    model = build("llama")
    desk = build_desk(model)
    return desk, LayerCount(model, desk.engine.anatomy.layers)


@pytest.fixture
def desk(counted: tuple[Desk, LayerCount]) -> Iterator[Desk]:
    desk = counted[0]
    desk.open("a")
    desk.open("b")
    desk.events.clear()
    yield desk
    desk.close_all()


def plain(prompt: tuple[int, ...] = PROMPT, new: int = NEW, family: str = "llama", **settings: Any) -> Outcome:
    return generate(plain_of(family), prompt, new, **settings)


def start(desk: Desk, name: str, prompt: tuple[int, ...] = PROMPT, new: int = NEW, **options: Any) -> list[Any]:
    """Submit a run; the list gets its reply."""
    replies: list[Any] = []
    desk.post(ask.Run(session=name, tokens=prompt, max_new_tokens=new, ignore_eos=True, **options), replies)
    return replies


def until(desk: Desk, *replies: list[Any]) -> None:
    while not all(replies):
        assert desk.engine.tick(), "idle, and somebody is not answered"


def during(desk: Desk, layer: int, act: Callable[[], None], pass_: int = 0) -> None:
    """Act once, as another thread would, while that layer runs for the `pass_`-th time from now."""
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == pass_ + 1:
            handle.remove()
            act()

    handle = desk.engine.anatomy.layers[layer].mlp.register_forward_hook(hook)


@pytest.mark.parametrize("layer", [0, 4, 7])
def test_a_command_is_answered_before_the_next_layer_of_somebodys_prefill(
    desk: Desk, counted: tuple[Desk, LayerCount], layer: int
) -> None:
    count = counted[1].counted
    count.clear()
    told: list[tuple[Any, int]] = []

    def command() -> None:
        before = count.total()
        assert before == layer + 1
        desk.engine.submit(ask.Describe(session="b"), ME, lambda reply: told.append((reply, count.total() - before)))

    during(desk, layer, command)
    ends = start(desk, "a", LONG)
    until(desk, ends)
    assert [(type(reply), layers) for reply, layers in told] == [(Described, 0)]
    assert desk.outcome(ends[0]) == plain(LONG)


def test_a_run_that_comes_during_a_layer_has_its_turn_before_the_next(
    desk: Desk, counted: tuple[Desk, LayerCount]
) -> None:
    stopped: list[Any] = []
    desk.stop_at("resid_post.0", name="b")
    request = ask.Run(session="b", tokens=PROMPT, max_new_tokens=1, ignore_eos=True)
    during(desk, 1, lambda: desk.post(request, stopped))
    counted[1].counted.clear()
    ends = start(desk, "a", LONG, 1)
    until(desk, stopped)
    assert isinstance(stopped[0], Paused)
    assert counted[1].counted.total() == 2 + 1
    until(desk, ends)
    assert desk.outcome(ends[0]) == plain(LONG, 1)


def test_decode_steps_alternate(desk: Desk) -> None:
    ends = start(desk, "a", new=8), start(desk, "b", new=8)
    until(desk, *ends)
    told = [event.session for event in desk.events if isinstance(event, TokenSampled)]
    assert told == ["a", "b"] * 8
    assert desk.outcome(ends[0][0], "a") == desk.outcome(ends[1][0], "b") == plain(new=8)


def test_a_session_whose_work_fails_as_it_is_ended_is_closed_all_the_same(desk: Desk) -> None:
    def steps() -> Iterator[None]:
        try:
            while True:
                yield
        finally:
            raise RuntimeError("Made to fail.")

    ends = start(desk, "a", LONG)
    desk.engine.tick()
    job: Any = desk.engine.scheduler.job_of(desk.session())
    job.steps = steps()
    next(job.steps)
    closed: list[Any] = []
    desk.post(ask.Close(session="a"), closed)
    until(desk, closed, ends)
    assert isinstance(closed[0], Closed)
    assert ends[0].code == "IllegalMove"
    assert "a" not in desk.engine.sessions
    assert "Made to fail" in str(desk.engine.faults.last)


@pytest.mark.parametrize(("pass_", "layer"), [(0, 0), (0, 3), (0, 7), (2, 6), (2, 7)])
def test_a_pause_stops_a_run_at_the_next_boundary(desk: Desk, layer: int, pass_: int) -> None:
    pausing: list[Any] = []
    during(desk, layer, lambda: desk.post(ask.Pause(session="a"), pausing), pass_)
    ends = start(desk, "a", LONG)
    until(desk, ends)
    stop = ends[0]
    assert pausing == [Pausing(was_running=True)]
    assert isinstance(stop, Paused)
    expected = (pass_, layer + 1) if layer < 7 else (pass_ + 1, 0)  # after the last layer the pass is over
    assert (stop.step, stop.layer, stop.reason) == (*expected, "interrupt")
    desk.fork("c")
    desk.edit(Scale(factor=0.5), "c")
    desk.resume("c")
    assert desk.outcome(desk.resume()) == plain(LONG)
    desk.back()
    assert desk.outcome(desk.resume()) == plain(LONG)


def test_a_pause_before_the_first_pass_stops_it_at_its_start(desk: Desk) -> None:
    ends = start(desk, "a")
    desk.post(ask.Pause(session="a"), [])
    until(desk, ends)
    assert (ends[0].layer, ends[0].step, ends[0].site) == (0, 0, "resid_pre.0")
    assert desk.outcome(desk.resume()) == plain()


def test_a_pause_of_a_session_that_does_not_run_says_so_and_is_forgotten(desk: Desk) -> None:
    assert desk.ask(ask.Pause(session="a")) == Pausing(was_running=False)
    assert desk.outcome(desk.run(PROMPT, NEW)) == plain()


@pytest.mark.parametrize("family", ["llama", "gemma3n_text", "jamba"])
def test_sessions_that_change_at_every_boundary_are_each_as_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of(family)
    prompts = [tokens(n, seed=n) for n in (14, 9, 25)]
    names = ["a", "b", "c"]
    monkeypatch.setattr(Mailbox, "waiting", True)  # the passes see mail at every boundary
    for name in names:
        desk.open(name)
    desk.engine.counters.preemptions = 0
    draws = [{}, {"sampling": Sampling(temperature=1.0, seed=3)}, {}]
    ends = [start(desk, name, prompt, **draw) for name, prompt, draw in zip(names, prompts, draws, strict=False)]
    until(desk, *ends)
    assert desk.engine.counters.preemptions >= 3 * NEW * (desk.layers - 1)
    for name, prompt, end, draw in zip(names, prompts, ends, draws, strict=False):
        settings = {"seed": 3} if draw else {}
        assert desk.outcome(end[0], name) == plain(prompt, NEW, family, **settings), name
    desk.close_all()


@pytest.mark.parametrize("layer", [2, 7])
def test_a_session_closed_in_the_middle_of_its_run_is_gone_and_the_others_go_on(desk: Desk, layer: int) -> None:
    closed: list[Any] = []
    during(desk, layer, lambda: desk.post(ask.Close(session="a"), closed), 1)
    ends, others = start(desk, "a", LONG), start(desk, "b", new=8)
    until(desk, ends, others)
    assert isinstance(ends[0], Failed)
    assert closed[0].pages_freed > 0
    assert "a" not in desk.engine.sessions
    assert desk.outcome(others[0], "b") == plain(new=8)
    desk.settle()


def test_a_flood_of_mail_does_not_starve_a_run(desk: Desk) -> None:
    """Every answer brings the next question, and every layer gets its turn between them."""
    answered = 0

    def more(reply: Any) -> None:
        nonlocal answered
        answered += 1
        if not ends:
            desk.engine.submit(ask.Describe(session="b"), ME, more)

    ends = start(desk, "a", LONG)
    more(None)
    until(desk, ends)
    assert desk.outcome(ends[0]) == plain(LONG)
    assert desk.layers * NEW <= answered <= 3 * desk.layers * NEW


def test_mail_that_comes_while_mail_is_read_waits_its_turn(desk: Desk) -> None:
    """Were the mailbox read until it is empty, these requests, each posted by the one before, would come first."""
    opened: list[str] = []

    def publish(event: Any) -> None:
        if isinstance(event, SessionOpened) and len(opened) < 400:
            opened.append(event.session)
            desk.post(ask.Open(session=f"n{len(opened)}"), [])

    told, desk.hears = desk.hears, publish
    try:
        ends = start(desk, "a", new=1)
        desk.post(ask.Open(session="n"), [])
        until(desk, ends)
        assert len(opened) < 30
    finally:
        desk.hears = told
    desk.settle()


def test_letters_to_a_session_that_is_being_looked_at_are_answered_in_order(desk: Desk) -> None:
    desk.stop_at("resid_post.5", "step == 0", "b")
    desk.run(PROMPT, NEW, "b")
    others = start(desk, "a", LONG)
    order: list[str] = []
    ends: list[Any] = []
    requests = [
        ask.Inspect(session="b", site="resid_post.2"),
        ask.ApplyEdit(session="b", edit=Scale(factor=0.5)),
        ask.MeasureEffect(session="b"),
        ask.RevertEdits(session="b"),
        ask.Resume(session="b"),
    ]
    for request in requests:
        desk.engine.submit(request, ME, lambda reply: (order.append(type(reply).__name__), ends.append(reply)))
    while len(ends) < len(requests):
        desk.engine.tick()
    until(desk, others)
    assert order == ["Inspected", "Edited", "Effect", "Paused", "Finished"]
    assert desk.outcome(ends[-1], "b") == plain()
    assert desk.outcome(others[0]) == plain(LONG)


def test_a_holder_that_leaves_in_the_middle_of_a_run_leaves_its_sessions_detached_and_running(desk: Desk) -> None:
    ends = start(desk, "a", LONG)
    during(desk, 3, lambda: desk.engine.lose_holder(ME))
    until(desk, ends)
    assert isinstance(ends[0], Finished)
    assert desk.session().holder is None
    opened = desk.engine.ask(ask.Open(session="a"), Holder(name="another", user="tester"))
    assert (opened.created, opened.session.holder) == (False, "another")


def test_a_session_that_nobody_touches_grows_idle_in_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the reading goes on for an hour, and nothing is described anew."""
    desk = desk_of("llama")
    desk.open()
    reading = desk.engine.reading
    begun = time.monotonic()
    before = reading.sessions[0].idle_seconds
    now = time.monotonic()
    monkeypatch.setattr(publishing, "time", SimpleNamespace(monotonic=lambda: now + 3600.0))
    after = reading.sessions[0].idle_seconds
    assert reading is desk.engine.reading
    assert 3600.0 <= after <= before + 3600.0 + (now - begun) + 1e-6


def test_jobs_that_none_can_choose_among_are_ended_and_answered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[Any] = []
    for name in "ab":
        desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=NEW), replies)
    desk.engine.dispatcher.read_mail()
    turns = desk.engine.turns

    def choose() -> None:
        raise ArithmeticError("planted")

    with monkeypatch.context() as broken:
        broken.setattr(desk.engine.scheduler, "next", choose)
        assert turns.advance_next(), "that all jobs were ended is something done"
        assert not turns.advance_next()
    while desk.engine.tick():
        pass
    assert [type(reply) for reply in replies] == [Failed, Failed]
    assert all("planted" in reply.message for reply in replies)
    assert isinstance(desk.run(PROMPT, 2), Finished)
