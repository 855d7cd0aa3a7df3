"""Parts that modules add to a logit equal those of plain Hugging Face hooks and arithmetic, and sum to the logit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.memory.weights.streaming import streamed_desk
from tests.engine.plain import plain_of
from tests.engine.requests.plain_attribution import Part, plain_attribution

PROMPT = tokens(9)
A, B = 17, 42


@pytest.fixture(params=["llama", "gpt2"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def attribute(desk: Desk, *chosen: int, heads: bool = False, position: int = -1, ahead: bool = False) -> Any:
    return desk.ask(Attribute(session="a", tokens=chosen, heads=heads, position=position, ahead=ahead))


def explained(told: Any) -> float:
    return told.embedding + told.constant + sum(one.value for one in told.contributions)


def at_the_end(desk: Desk) -> None:
    desk.stop_at(f"resid_post.{desk.layers - 1}")
    desk.run(PROMPT)


def largest_error(told: Any, plain: dict[Part, float]) -> float:
    """The largest difference of a told contribution from the plain one, as part of the largest contribution."""
    wanted = [plain[one.point, one.layer, one.head] for one in told.contributions if one.point != "bias"]
    errors = [
        abs(one.value - plain[one.point, one.layer, one.head]) for one in told.contributions if one.point != "bias"
    ]
    return max(errors) / max(map(abs, wanted))


FULL, HALF = torch.float32, torch.bfloat16
ROUNDED = {FULL: 1e-6, HALF: 2**-8}
"""Rounding of a head's share, and of what is not explained, as part of the largest contribution."""
SOME = (("llama", FULL, True), ("gpt2", HALF, False), ("mixtral", HALF, True))
CASES = [
    pytest.param(family, dtype, streams, marks=[] if (family, dtype, streams) in SOME else pytest.mark.slow)
    for family in ("llama", "gpt2", "mixtral")
    for dtype in (FULL, HALF)
    for streams in (False, True)
]


@pytest.mark.parametrize(("family", "dtype", "streams"), CASES)
def test_parts_are_those_of_plain_hooks_and_gradients(family: str, dtype: torch.dtype, streams: bool) -> None:
    """In any dtype a module's output is given bit for bit, and what it adds is exact to 1e-6 of the largest."""
    desk = streamed_desk(family, dtype=dtype) if streams else desk_of(family, dtype)
    desk.open()
    at_the_end(desk)
    plain = plain_attribution(plain_of(family, dtype), PROMPT, A, B)
    told, by_head = attribute(desk, A, B), attribute(desk, A, B, heads=True)
    assert len(told.contributions) == 2 * desk.layers
    assert told.logit == plain.logit
    assert largest_error(told, plain.parts) < 1e-6
    assert largest_error(by_head, plain.parts) < ROUNDED[dtype]
    assert told.embedding == pytest.approx(plain.embedding, abs=1e-6)
    assert abs(told.rest) < 4 * ROUNDED[dtype] * max(map(abs, plain.parts.values()))
    desk.close_all()


def test_all_of_it_sums_to_the_logit(desk: Desk) -> None:
    at_the_end(desk)
    for chosen in ((A,), (A, B)):
        told = attribute(desk, *chosen)
        assert explained(told) == pytest.approx(told.logit, abs=1e-4)
        assert told.rest == pytest.approx(told.logit - explained(told), abs=1e-9)


def test_heads_and_the_bias_of_the_output_map_sum_to_their_attention(desk: Desk) -> None:
    at_the_end(desk)
    whole, parted = attribute(desk, A, B), attribute(desk, A, B, heads=True)
    for layer in range(desk.layers):
        heads = [one.value for one in parted.contributions if (one.point, one.layer) == ("z", layer)]
        (attention,) = [one.value for one in whole.contributions if (one.point, one.layer) == ("attn_out", layer)]
        assert len(heads) == desk.engine.anatomy.taps["z", layer].heads  # type: ignore[union-attr]
        (bias,) = [one.value for one in parted.contributions if (one.point, one.layer) == ("bias", layer)]
        assert sum(heads) + bias == pytest.approx(attention, abs=1e-5)
    assert explained(parted) + parted.rest == pytest.approx(parted.logit, abs=1e-9)


def test_at_an_earlier_stop_it_is_the_lens_that_is_explained(desk: Desk) -> None:
    desk.stop_at("resid_post.2")
    desk.run(PROMPT)
    told = attribute(desk, A, position=4)
    lens = desk.ask(ask.Lens(session="a", positions=(4,), tokens=(A,))).rows[0].chosen[0]
    assert (told.position, told.layer, told.logit) == (4, 3, lens.logit)
    assert explained(told) == pytest.approx(told.logit, abs=1e-4)
    assert {one.layer for one in told.contributions} == {0, 1, 2}


def test_what_an_edit_put_in_is_the_rest_and_the_stop_is_as_it_was(desk: Desk) -> None:
    at_the_end(desk)
    plain = attribute(desk, A)
    desk.edit(Scale(factor=3.0))
    value = desk.value()
    told = attribute(desk, A)
    assert abs(told.rest) > 0.01 > abs(plain.rest)
    assert torch.equal(desk.value(), value)
    desk.ask(ask.RevertEdits(session="a"))
    unasked = desk.outcome(desk.resume(free=True))
    desk.open()
    assert desk.outcome(desk.run(PROMPT)) == unasked


def test_before_any_layer_it_is_refused(desk: Desk) -> None:
    desk.stop_at("resid_pre.0")
    desk.run(PROMPT)
    with pytest.raises(UnknownSite, match="No layer has run at this stop"):
        attribute(desk, A)


def test_a_soft_cap_is_refused() -> None:
    desk = desk_of("gemma2")
    desk.open()
    at_the_end(desk)
    desk.engine.model.config.final_logit_softcapping = 0.05
    try:
        with pytest.raises(UnknownSite, match="bends its logits after the head"):
            attribute(desk, A)
    finally:
        desk.close_all()


@pytest.mark.parametrize("site", ["attn_out.2"])
def test_ahead_of_a_stop_the_same_adds_as_at_the_end_and_nothing_moves(desk: Desk, site: str) -> None:
    at_the_end(desk)
    whole = attribute(desk, A, B)
    desk.ask(ask.ClearBreakpoints(session="a"))
    desk.stop_at(site)
    desk.run(PROMPT)
    ahead = attribute(desk, A, B, ahead=True)
    assert ahead.contributions == whole.contributions
    assert (ahead.logit, ahead.embedding, ahead.layer) == (whole.logit, whole.embedding, desk.layers)
    assert "lie ahead of the stop" in ahead.notes[-1]
    assert str(desk.ask(ask.ReadStop(session="a")).site) == site
    assert attribute(desk, A, B).layer < desk.layers
    desk.ask(ask.ClearBreakpoints(session="a"))
    desk.stop_at(f"resid_post.{desk.layers - 1}")
    desk.ask(ask.Resume(session="a"))
    assert attribute(desk, A, B).contributions == whole.contributions


@pytest.mark.parametrize("site", ["resid_post.1"])
def test_ahead_of_an_edited_stop_is_what_the_edit_leads_to(desk: Desk, site: str) -> None:
    desk.stop_at(site)
    desk.run(PROMPT)
    desk.ask(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)))
    ahead = attribute(desk, A, ahead=True)
    desk.ask(ask.ClearBreakpoints(session="a"))
    desk.stop_at(f"resid_post.{desk.layers - 1}")
    desk.ask(ask.Resume(session="a"))
    assert ahead.logit == attribute(desk, A).logit
