"""Running sessions meet at each layer: it is fetched once, each runs it alone, and no session's bits change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, Outcome, tokens
from tests.engine.memory.weights.streaming import moved_by, streamed, streamed_desk

PASSES = 5
PROMPTS = {name: tokens(10 + 3 * number, seed=number) for number, name in enumerate("abcd")}


@pytest.fixture(scope="module", params=["llama", "jamba"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return streamed_desk(request.param)


@pytest.fixture(scope="module")
def alone(desk: Desk) -> dict[str, Outcome]:
    found = {}
    for name, prompt in PROMPTS.items():
        desk.open(name)
        found[name] = desk.outcome(desk.run(prompt, PASSES, name), name)
    return found


@pytest.fixture(autouse=True)
def clean(desk: Desk) -> Iterator[None]:
    yield
    desk.close_all()


def start(desk: Desk, name: str) -> list[Any]:
    if name not in desk.engine.sessions:
        desk.open(name)
    replies: list[Any] = []
    desk.post(ask.Run(session=name, tokens=PROMPTS[name], max_new_tokens=PASSES, ignore_eos=True), replies)
    return replies


def test_one_pass_over_the_weights_for_all(desk: Desk, alone: dict[str, Outcome]) -> None:
    """The longest of them has so many passes, and the weights move so many times, for however many sessions."""
    started: dict[str, list[Any]] = {}
    for name in PROMPTS:
        desk.open(name)

    def together() -> None:
        started.update({name: start(desk, name) for name in PROMPTS})
        desk.settle()

    assert moved_by(desk, together) == PASSES * streamed(desk).bytes_per_pass
    for name, replies in started.items():
        assert desk.outcome(replies[0], name) == alone[name]


def test_who_comes_in_the_midst_of_a_pass_falls_in_at_the_first_layer(desk: Desk, alone: dict[str, Outcome]) -> None:
    """Two are in their first pass; the third begins with their second, and one pass more is all it costs."""
    started: dict[str, list[Any]] = {}
    for name in "abc":
        desk.open(name)

    def one_later() -> None:
        started.update({name: start(desk, name) for name in "ab"})
        for _ in range(7):
            desk.engine.tick()
        assert [0 < desk.session(name).frame.boundary < 8 for name in "ab"] == [True, True]
        started["c"] = start(desk, "c")
        desk.settle()

    assert moved_by(desk, one_later) == (1 + PASSES) * streamed(desk).bytes_per_pass
    for name, replies in started.items():
        assert desk.outcome(replies[0], name) == alone[name]


def test_one_that_stops_on_the_way_costs_the_others_nothing(desk: Desk, alone: dict[str, Outcome]) -> None:
    desk.open("a")
    desk.open("b")
    desk.stop_at("resid_post.4", when="step == 1", name="b")
    started: dict[str, list[Any]] = {}

    def together() -> None:
        started["a"] = start(desk, "a")
        started["b"] = start(desk, "b")
        desk.settle()

    assert moved_by(desk, together) == PASSES * streamed(desk).bytes_per_pass
    assert desk.outcome(started["a"][0], "a") == alone["a"]
    assert isinstance(started["b"][0], told.Paused)
    assert desk.outcome(desk.resume("b", free=True), "b") == alone["b"]


def test_one_that_runs_alone_never_steps_aside(desk: Desk) -> None:
    desk.open("a")
    before = desk.engine.counters.preemptions
    desk.run(PROMPTS["a"], PASSES)
    assert desk.engine.counters.preemptions == before


def test_a_look_goes_between(desk: Desk, alone: dict[str, Outcome]) -> None:
    """A look below a stop fetches other layers meanwhile; the runs are in step again after it."""
    desk.open("c")
    desk.stop_at("resid_post.5", name="c")
    desk.run(PROMPTS["c"], 2, "c")
    started = {name: start(desk, name) for name in "ab"}
    for _ in range(5):
        desk.engine.tick()
    looked: list[Any] = []
    desk.post(ask.Inspect(session="c", site="resid_post.2"), looked)
    desk.settle()
    assert isinstance(looked[0], told.Inspected)
    for name, replies in started.items():
        assert desk.outcome(replies[0], name) == alone[name]
