"""Steps forward and back, by layer, token and stop: every place is reached, and from each the run is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale
from djinn_jupyter.wire.nouns import Sampling
from djinn_jupyter.wire.replies import Finished, Paused, SessionPaused
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.plain import generate, plain_of

pytestmark = pytest.mark.drawn

FAMILIES = ("llama", "jamba", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "mamba2")))
PROMPT = tokens(14)
NEW = 8
PUSH = Add(vector=array(torch.randn(32, generator=torch.Generator().manual_seed(4))), coef=10.0)


@pytest.fixture(params=FAMILIES, scope="module")
def of_family(request: pytest.FixtureRequest) -> Desk:
    return desk_of(request.param)


@pytest.fixture
def desk(of_family: Desk) -> Iterator[Desk]:
    of_family.open()
    yield of_family
    of_family.close_all()


@pytest.fixture(scope="module")
def plain(of_family: Desk) -> Outcome:
    return generate(plain_of(of_family.engine.model.config.model_type), PROMPT, NEW)


def place(paused: Paused) -> tuple[int, int]:
    return paused.step, paused.layer


def test_steps_by_layer_walk_through_the_whole_run(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_pre.0", "step == 0")
    reply: Any = desk.run(PROMPT, 3)
    met = [place(reply)]
    while isinstance(reply := desk.step(), Paused):
        met.append(place(reply))
        assert reply.reason == "step"
    assert met == [(0, 0)] + [(step, layer) for step in range(3) for layer in range(1, desk.layers + 1)]
    assert reply.tokens == plain.tokens[:3]


@pytest.mark.parametrize("count", [5, 9, 17])
def test_a_step_of_several_layers_crosses_passes(desk: Desk, plain: Outcome, count: int) -> None:
    desk.stop_at("resid_post.2", "step == 0")
    desk.run(PROMPT, NEW)
    stop = desk.step(count)
    passed, layer = divmod(3 + count - 1, desk.layers)
    assert place(stop) == (passed, layer + 1)
    assert desk.outcome(desk.resume()) == plain


def test_a_step_from_within_a_layer_ends_at_that_layers_output(desk: Desk) -> None:
    desk.stop_at("model.layers.5.mlp.input" if desk is desk_of("llama") else "resid_pre.5", "step == 1")
    desk.run(PROMPT, NEW)
    assert place(desk.step()) == (1, 6)


def test_steps_by_token_stay_at_the_site(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_post.4", "step == 0")
    assert place(desk.run(PROMPT, NEW)) == (0, 5)
    assert [place(desk.step(count, by="token")) for count in (1, 1, 3)] == [(1, 5), (2, 5), (5, 5)]
    assert isinstance(desk.step(20, by="token"), Finished)
    assert desk.logits().equal(plain.logits)


def test_a_step_that_meets_a_breakpoint_first_stops_there(desk: Desk) -> None:
    desk.stop_at("resid_post.1")
    desk.run(PROMPT, NEW)
    stop = desk.step(20)
    assert (place(stop), stop.reason) == ((1, 2), "breakpoint")


@pytest.mark.parametrize("step", [0, 3])
def test_back_by_layers_to_every_boundary_of_the_pass(desk: Desk, plain: Outcome, step: int) -> None:
    desk.stop_at("resid_post.7", f"step == {step}")
    desk.run(PROMPT, NEW)
    values = {boundary: desk.value(spelled(boundary)) for boundary in range(desk.layers)}
    for boundary in range(desk.layers):
        desk.fork("b")
        stop = desk.back(desk.layers - boundary, by="layer", name="b")
        assert (place(stop), stop.reason) == ((step, boundary), "back")
        assert desk.value(name="b").equal(values[boundary])
        desk.edit(PUSH, "b")
        desk.resume("b", free=True)
        desk.back(name="b")
        assert desk.outcome(desk.resume("b", free=True), "b") == plain
        desk.close("b")
    with pytest.raises(UsageError, match="go back by token or by stop"):
        desk.back(desk.layers + 1, by="layer")
    assert desk.outcome(desk.resume()) == plain


def spelled(boundary: int) -> str:
    return f"resid_post.{boundary - 1}" if boundary else "resid_pre.0"


@pytest.mark.parametrize("draw", [None, Sampling(temperature=1.0, seed=3)])
def test_back_by_tokens_to_every_pass_of_a_finished_run(desk: Desk, draw: Sampling | None) -> None:
    options = {} if draw is None else {"sampling": draw}
    first = desk.outcome(desk.run(PROMPT, NEW, **options))
    for count in range(1, NEW + 1):
        desk.fork("b")
        stop = desk.back(count, by="token", name="b")
        assert place(stop) == (NEW - count, 0)
        assert stop.tokens == (PROMPT + first.tokens)[: len(PROMPT) + NEW - count]
        assert desk.outcome(desk.resume("b"), "b") == first, count
        desk.close("b")
    with pytest.raises(UsageError, match=f"at most {NEW} tokens"):
        desk.back(NEW + 1, by="token")
    assert desk.logits().equal(first.logits)


def test_back_by_tokens_stands_at_the_site_of_the_stop(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_post.4", "step == 6")
    desk.run(PROMPT, NEW)
    assert place(desk.back(2, by="token")) == (4, 5)
    assert place(desk.back(3, by="token")) == (1, 5)
    assert desk.outcome(desk.resume(free=True)) == plain


def test_back_by_tokens_over_a_long_line(desk: Desk) -> None:
    """The line is longer than the period at which states are kept."""
    long = 40
    expected = generate(plain_of(desk.engine.model.config.model_type), PROMPT, long)
    desk.run(PROMPT, long)
    for count in (2, 23, 7, 5):
        desk.back(count, by="token")
        desk.edit(Scale(factor=0.9))
        desk.ask(ask.RevertEdits(session="a"))
        assert desk.outcome(desk.resume()) == expected


def test_back_by_tokens_knows_no_states_of_an_abandoned_branch(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_post.2", "step == 3")
    desk.run(PROMPT, NEW)
    desk.edit(PUSH)
    desk.resume()
    desk.back()
    assert desk.outcome(desk.resume()) == plain
    desk.back(NEW - 5, by="token")
    assert desk.outcome(desk.resume()) == plain


def test_back_by_stops_through_a_whole_run(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_post.2")
    desk.stop_at("resid_post.6", "step > 0")
    desk.run(PROMPT, NEW)
    while isinstance(desk.resume(), Paused):
        pass
    stops = desk.ask(ask.ReadHistory(session="a")).stops
    assert len(stops) == 2 * NEW - 1
    for count in range(1, len(stops) + 1):
        desk.fork("b")
        stop = desk.back(count, name="b")
        assert (stop.site, stop.step) == (stops[-count].site, stops[-count].step)
        assert desk.outcome(desk.resume("b", free=True), "b") == plain
        desk.close("b")


def test_going_on_from_an_earlier_stop_drops_the_later_ones(desk: Desk) -> None:
    desk.stop_at("resid_post.2")
    desk.run(PROMPT, NEW)
    for _ in range(3):
        desk.resume()
    desk.back(2)
    assert [stop.step for stop in desk.ask(ask.ReadHistory(session="a")).stops] == [0, 1, 2, 3]
    desk.resume(free=True)
    assert [stop.step for stop in desk.ask(ask.ReadHistory(session="a")).stops] == [0, 1]


def test_a_run_is_a_fresh_line_and_twice_the_same(desk: Desk, plain: Outcome) -> None:
    desk.run(tokens(30, seed=9), 5)
    for _ in range(2):
        assert desk.outcome(desk.run(PROMPT, NEW)) == plain
        desk.stop_at("resid_post.3", "step == 2")
        desk.run(PROMPT, NEW)
        desk.edit(PUSH)
        desk.clear()
    assert desk.outcome(desk.run(PROMPT, NEW)) == plain


def test_an_extension_goes_on_with_the_kernels_of_a_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU `generate` gives the experts of some mixtures another kernel in decode steps: other last bits."""
    desk = desk_of("mixtral")
    model: Any = desk.engine.model
    decoded: list[int] = []

    @contextmanager
    def switched() -> Iterator[None]:
        decoded.append(desk.session().cache.length)
        yield

    monkeypatch.setattr(desk.engine.forward, "_switches_experts", True)
    monkeypatch.setattr(model, "_optimize_model_for_decode", switched)
    desk.open()
    desk.run(PROMPT, 5)
    in_one = list(decoded)
    decoded.clear()
    desk.run(PROMPT, 3)
    desk.run((), 2, extend=True)
    assert decoded == in_one == list(range(len(PROMPT), len(PROMPT) + 4))
    desk.close_all()


def test_an_extension_goes_on_where_the_line_ended(desk: Desk, plain: Outcome) -> None:
    """A run extended in pieces equals the run in one piece."""
    desk.run(PROMPT, 3)
    desk.run((), 2, extend=True)
    finished = desk.run((), NEW - 5, extend=True)
    assert finished.tokens == plain.tokens[5:]
    assert desk.logits().equal(plain.logits)
    assert finished.prompt_tokens == PROMPT + plain.tokens[:5]


def test_an_extension_can_be_stopped_and_gone_back_on(desk: Desk) -> None:
    """It can go back also to the stops of the line it extends, and by tokens within itself."""
    desk.stop_at("resid_post.3", "step == 1")
    desk.run(PROMPT, 4)
    first = desk.outcome(desk.resume())
    desk.run(tokens(6, seed=7), 4, extend=True)
    extended = desk.outcome(desk.resume())
    for count in (1, 3, 4):
        desk.fork("b")
        assert desk.back(count, by="token", name="b").step == 4 - count
        assert desk.outcome(desk.resume("b", free=True), "b") == extended, count
        desk.close("b")
    assert desk.back(1).step == 1
    assert desk.outcome(desk.resume()) == extended
    assert desk.back(2).tokens == PROMPT + first.tokens[:1]
    assert desk.outcome(desk.resume()) == first


def test_more_stops_than_are_kept_in_memory_go_to_the_disk_and_can_be_gone_back_to(desk: Desk, plain: Outcome) -> None:
    history = desk.session().history
    history.kept = 4
    desk.stop_at("resid_post.2")
    desk.run(PROMPT, NEW)
    while isinstance(desk.resume(), Paused):
        pass
    assert (len(history.stops), history.on_disk, history.dropped) == (NEW, NEW - 4, 0)
    assert desk.back(NEW).step == 0
    assert desk.outcome(desk.resume(free=True)) == plain


def test_steps_by_point_meet_every_point_once_and_change_no_bit(desk: Desk, plain: Outcome) -> None:
    desk.stop_at("resid_pre.0", "step == 0")
    reply: Any = desk.run(PROMPT, 2)
    with pytest.raises(UsageError, match="one at a time"):
        desk.step(2, by="point")
    met: list[tuple[int, str]] = []
    while isinstance(reply := desk.step(by="point"), Paused):
        met.append((reply.step, reply.site))
    assert len(set(met)) == len(met)
    layers = [f"resid_post.{layer}" for layer in range(desk.layers)]
    assert [site for step, site in met if step == 0 and site in layers] == layers
    assert {site for _, site in met} >= {"embed", "attn_in.3", "mlp_out.3", "logits"} - absent(desk)
    assert reply.tokens == plain.tokens[:2]


def absent(desk: Desk) -> set[str]:
    """Points of layer 3 that this family does not have."""
    points = desk.engine.description.points
    return {f"{p.point}.3" for p in points if p.layers is not None and 3 not in p.layers}


@pytest.mark.parametrize("by", ["stop", "layer", "token"])
def test_going_back_is_told_to_those_who_follow_the_session(desk: Desk, by: Any) -> None:
    desk.stop_at("resid_post.2", "step < 2")
    desk.run(PROMPT, NEW)
    desk.resume()
    del desk.events[:]
    stop = desk.back(by=by)
    told = [event for event in desk.events if isinstance(event, SessionPaused)]
    assert [(event.site, event.step, event.reason) for event in told] == [(stop.site, stop.step, "back")]


@pytest.mark.parametrize(("count", "by"), [(1, "stop"), (2, "layer"), (2, "token")])
def test_the_books_of_a_result_are_of_the_way_that_led_to_it(desk: Desk, count: int, by: Any) -> None:
    """They are the same after going back and on any number of times; an extension counts from its own beginning."""
    desk.stop_at("resid_post.4", "step == 3")
    stop = desk.run(PROMPT, NEW)
    whole = desk.resume()
    desk.back()
    assert desk.session().generation.layers_run == stop.layers_run == 3 * desk.layers + 5
    back = desk.back(count, by=by) if by != "stop" else stop
    assert back.layers_run == back.step * desk.layers + back.layer
    again = desk.resume(free=True)
    assert (again.layers_run, again.passes) == (whole.layers_run, whole.passes) == (NEW * desk.layers, NEW)
    desk.run((), 3, extend=True, free=True)
    desk.back(2, by="token")
    further = desk.resume(free=True)
    assert (further.layers_run, further.passes) == (3 * desk.layers, 3)
