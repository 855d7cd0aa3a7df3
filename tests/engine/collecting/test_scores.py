"""Losses and logits of all positions are those of the plain model, to the bit; rules of a session hold in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import IllegalMove, PromptTooLong, SlabFull, UsageError
from djinn_jupyter.methods.datasets.engine import handlers
from djinn_jupyter.methods.datasets.engine.handlers import loss_of
from djinn_jupyter.methods.datasets.request import Score, Scored
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale, Zero
from tests.device import DEVICE
from tests.engine.collecting.test_collections import LAYERS, PROMPTS
from tests.engine.desk import Desk, desk_of
from tests.engine.plain import plain_of


def scored(desk: Desk, **fields: Any) -> Any:
    desk.open("s")
    reply = desk.ask(Score(session="s", **{"prompts": PROMPTS, **fields}))
    assert isinstance(reply, Scored), reply
    return to_tensor(reply.values)


def plain_logits(model: Any, prompt: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([prompt], device=DEVICE), use_cache=True).logits[0].float().cpu()


def plain_loss(model: Any, prompt: tuple[int, ...]) -> torch.Tensor:
    return cross_entropy(plain_logits(model, prompt)[:-1], torch.tensor(prompt[1:]), reduction="none")


@pytest.mark.parametrize(("family", "dtype"), [("gemma2", torch.bfloat16), ("mamba2", torch.float32)])
def test_losses_and_logits_have_the_bits_of_the_plain_model(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "LOSS_ROWS", 5)
    desk, model = desk_of(family, dtype, layers=LAYERS), plain_of(family, dtype, layers=LAYERS)
    assert torch.equal(scored(desk), torch.cat([plain_loss(model, prompt) for prompt in PROMPTS]))
    logits = scored(desk, what="logits")
    assert torch.equal(logits, torch.cat([plain_logits(model, prompt) for prompt in PROMPTS]))
    desk.close_all()


def test_the_rules_of_a_session_hold() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("ruled")
    desk.steer("resid_post.1", Scale(factor=0.5), name="ruled")
    desk.run(PROMPTS[0], 0, name="ruled")
    last = desk.logits("ruled")
    ruled = scored(desk, prompts=("ruled",), what="logits", rules_of="ruled")
    assert (ruled[-1] - last).abs().max() < 1e-5  # the head of all rows sums in another order than of one
    assert torch.equal(ruled, scored(desk, prompts=PROMPTS[:1], what="logits", rules_of="ruled"))
    assert not torch.equal(ruled, scored(desk, prompts=PROMPTS[:1], what="logits"))
    assert torch.equal(desk.logits("ruled"), last)
    desk.close_all()


def test_a_line_with_edits_made_at_its_stops_is_refused() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    with pytest.raises(UsageError, match="has finished no pass yet"):
        scored(desk, prompts=("a",))
    desk.stop_at("resid_post.1")
    desk.run(PROMPTS[0], 0)
    desk.edit(Scale(factor=0.5))
    desk.resume(free=True)
    with pytest.raises(UsageError, match="edits made at stops"):
        scored(desk, prompts=("a",))
    with pytest.raises(IllegalMove, match="score in an empty one"):
        desk.ask(Score(session="a", prompts=PROMPTS))
    desk.close_all()


@pytest.mark.parametrize("later", ["a stop of the next step", "a stop of an extension", "a stop further up"])
def test_it_is_refused_too_at_later_stops_at_which_no_edit_was_made(later: str) -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.stop_at("resid_post.0", "step == 0")
    desk.run(PROMPTS[0], 2)
    desk.edit(Scale(factor=0.5))
    if later == "a stop of the next step":
        desk.stop_at("resid_post.1", "step == 1")
        desk.resume()
    elif later == "a stop of an extension":
        desk.resume(free=True)
        desk.ask(ask.Run(session="a", tokens=PROMPTS[1], extend=True, max_new_tokens=0))
        assert desk.describe("a").state == "paused"
        desk.resume(free=True)
    else:
        desk.stop_at("resid_post.1", "step == 0")
        desk.resume()
    assert desk.engine.sessions["a"].edits_in_force == ()
    with pytest.raises(UsageError, match="edits made at stops"):
        scored(desk, prompts=("a",))
    desk.close_all()


def test_a_line_of_rules_and_of_an_edit_that_was_taken_back_is_none_with_edits() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.steer("resid_post.0", Scale(factor=0.5), name="a")
    desk.stop_at("resid_post.1", "step == 0")
    desk.run(PROMPTS[0], 0)
    desk.edit(Scale(factor=2.0))
    desk.ask(ask.RevertEdits(session="a"))
    desk.resume(free=True)
    ruled = scored(desk, prompts=("a",), what="logits", rules_of="a")
    assert torch.equal(ruled, scored(desk, prompts=PROMPTS[:1], what="logits", rules_of="a"))
    desk.close_all()


def test_what_cannot_be_scored_is_refused_by_its_number() -> None:
    desk = desk_of("llama", layers=LAYERS)
    with pytest.raises(UsageError, match=r"Prompt 9 .* token id 128"):
        scored(desk, prompts=((1, 128),), first=9)
    with pytest.raises(PromptTooLong, match=r"Prompt 0 .* has 700 tokens"):
        scored(desk, prompts=(PROMPTS[0] * 100,))
    desk.close_all()


def test_logits_of_all_positions_have_their_room_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("s")
    budget = desk.engine.budget
    for slab in desk.engine.slabs:
        slab.shrink()
    monkeypatch.setattr(budget, "limit", budget.taken + 40_000)
    desk.ask(Score(session="s", prompts=PROMPTS))  # 12 positions of 128 logits: 6 KiB
    with pytest.raises(SlabFull):
        desk.ask(Score(session="s", prompts=(PROMPTS[2] * 8,)))  # 96 positions: 48 KiB
    monkeypatch.undo()
    desk.close_all()


def test_logits_of_more_bytes_than_an_answer_has_are_refused_before_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("long")
    desk.run(PROMPTS[0], 0, name="long")
    monkeypatch.setattr(bounds, "ANSWERED_LOGITS", len(PROMPTS[0]) * 128 * 4)
    assert scored(desk, prompts=("long",), what="logits").shape == (len(PROMPTS[0]), 128)
    passes = desk.engine.counters.layers_run
    with pytest.raises(
        UsageError, match=rf"are 14.5 KiB, more than .* at most {len(PROMPTS[0])} positions, or .* loss"
    ):
        scored(desk, prompts=PROMPTS, what="logits")
    assert desk.engine.counters.layers_run == passes
    assert scored(desk, prompts=PROMPTS).shape == (sum(map(len, PROMPTS)) - len(PROMPTS),)
    desk.close_all()


def test_a_prompt_that_is_run_after_a_stop_with_an_edit_has_no_edits() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.run(PROMPTS[0], 0)
    expected = scored(desk, prompts=("a",), what="logits")
    desk.stop_at("resid_post.1")
    desk.run(PROMPTS[1], 0)
    desk.edit(Zero())
    desk.ask(ask.ClearBreakpoints(session="a"))
    desk.run(PROMPTS[0], 0)
    assert torch.equal(scored(desk, prompts=("a",), what="logits"), expected)
    desk.close_all()


def test_a_line_of_one_token_has_no_losses() -> None:
    assert loss_of(torch.zeros(1, 10), (3,)).shape == (0,)
