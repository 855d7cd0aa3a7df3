"""Lines that run side by side and stop where the caller says as they go, beside plain hooks on the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import open_temporarily
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.integrations.lines import Standing, SteppedLines
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import tokens

LINES = [tokens(7, 1), tokens(5, 2)]


@pytest.fixture
def lines(engine: RemoteEngine) -> SteppedLines:
    return SteppedLines(engine.channel, lambda number: open_temporarily(engine.channel, "stepped"))


def test_the_next_stop_is_chosen_at_the_last_one(lines: SteppedLines, model: Any) -> None:
    lines.arm(2, {"resid_post.1"})
    assert lines.run(LINES).site == "resid_post.1"
    here = lines.values()
    assert [len(value) for value in here] == [7, 5]
    lines.edit(here, [value * 2 for value in here])
    lines.arm(2, {"model.layers.2.mlp.output"})
    stop = lines.go_on()
    assert (stop.site, stop.lines, stop.drawn) == ("model.layers.2.mlp.output", (0, 1), {0: (), 1: ()})
    with torch.inference_mode():
        hook = model.model.layers[1].register_forward_hook(lambda module, args, output: output * 2)
        expected = [model(torch.tensor([line])).logits[0].numpy() for line in LINES]
        hook.remove()
    for ours, plain in zip(lines.logits(), expected, strict=True):
        assert np.array_equal(ours, plain)
    lines.arm(2, ())
    assert lines.go_on() is None
    assert sorted(lines.ended) == [0, 1]
    with pytest.raises(UsageError, match="this pass has ended"):
        lines.logits()


def test_a_stop_at_a_known_place_costs_one_request(lines: SteppedLines, engine: RemoteEngine) -> None:
    sites = ["resid_post.1", "mlp_out.2", "resid_post.3"]
    lines.arm(1, set(sites))
    stop: Standing | None = lines.run(LINES[:1])
    before, seen = len(engine.channel.requests), []
    lines.values()
    for following in [*sites[1:], None]:
        here = lines.values()
        seen.append((stop.site, here[0].shape))
        lines.edit(here, [value * 0.5 for value in here])
        lines.arm(1, () if following is None else {following})
        stop = lines.go_on()
    assert stop is None
    assert seen == [(site, (7, 32)) for site in sites]
    assert [type(one) for one in engine.channel.requests[before:]] == [ask.Inspect, *[ask.ResumeWith] * 3]


def test_lines_begin_anew_at_the_sites_that_were_named_last(lines: SteppedLines) -> None:
    lines.arm(1, {"resid_post.1", "mlp_out.2"})
    assert lines.run(LINES[:1])
    here = lines.values()
    lines.edit(here, [value * 2 for value in here])
    lines.arm(1, {"mlp_out.2"})
    assert lines.run(LINES[:1]).site == "mlp_out.2"
    plain = lines.values()[0].copy()
    lines.arm(1, {"resid_post.1"})
    lines.run(LINES[:1])
    lines.edit(lines.values(), lines.values())
    lines.arm(1, {"mlp_out.2"})
    lines.go_on()
    assert np.array_equal(lines.values()[0], plain)


def test_a_generation_says_the_pass_and_the_tokens_drawn_so_far(lines: SteppedLines) -> None:
    lines.arm(2, {"logits"})
    stop: Standing | None = lines.run(LINES, max_new_tokens=3)
    seen = []
    while stop is not None:
        here = lines.values()
        seen.append((stop.step, [value.shape[0] for value in here], [len(drawn) for drawn in stop.drawn.values()]))
        wished = [np.where(np.arange(value.shape[-1]) == 9 + stop.step, 99.0, value) for value in here]
        lines.edit(here, wished)
        stop = lines.go_on()
    assert seen == [(step, [1, 1], [step, step]) for step in range(3)]
    assert [lines.ended[number].tokens for number in (0, 1)] == [(9, 10, 11)] * 2


def test_sites_that_no_pass_stops_at_are_named_and_the_others_are_set(lines: SteppedLines) -> None:
    refused = lines.arm(1, {"resid_post.1", "model.layers.9.mlp.output"})
    assert list(refused) == ["model.layers.9.mlp.output"]
    assert isinstance(refused["model.layers.9.mlp.output"], UnknownSite)
    assert lines.run(LINES[:1]).site == "resid_post.1"


def test_a_value_of_another_shape_is_refused(lines: SteppedLines) -> None:
    lines.arm(1, {"resid_post.1"})
    assert lines.run(LINES[:1])
    here = lines.values()
    with pytest.raises(UsageError, match=r"\(7, 32\) at resid_post.1 was replaced by one of shape \(3, 32\)"):
        lines.edit(here, [here[0][:3]])


def test_abandoned_sessions_are_closed_and_the_next_lines_have_others(
    lines: SteppedLines, engine: RemoteEngine
) -> None:
    lines.arm(2, {"resid_post.1"})
    assert lines.run(LINES)
    lines.abandon()
    lines.arm(1, {"resid_post.2"})
    assert lines.run(LINES[:1]).site == "resid_post.2"
    lines.close()
    assert engine.sessions() == ()
