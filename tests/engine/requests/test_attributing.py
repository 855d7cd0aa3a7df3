"""Parts that modules add to a logit equal those of plain Hugging Face hooks and arithmetic, and sum to the logit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.plain import plain_of

PROMPT = tokens(9)
A, B = 17, 42


@pytest.fixture(params=["llama", "gpt2"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def attribute(desk: Desk, *chosen: int, heads: bool = False, position: int = -1, ahead: bool = False) -> Any:
    return desk.ask(ask.Attribute(session="a", tokens=chosen, heads=heads, position=position, ahead=ahead))


def explained(told: Any) -> float:
    return told.embedding + told.constant + sum(one.value for one in told.contributions)


def at_the_end(desk: Desk) -> None:
    desk.stop_at(f"resid_post.{desk.layers - 1}")
    desk.run(PROMPT)


def plain_parts(desk: Desk) -> dict[tuple[str, int], Tensor]:
    """Return each attention's and MLP's output at the plain model's last position, the norm's input, and the logits."""
    model: Any = plain_of(str(desk.engine.model.config.model_type))
    inner = model.transformer if hasattr(model, "transformer") else model.model
    blocks = inner.h if hasattr(inner, "h") else inner.layers
    norm = inner.ln_f if hasattr(inner, "ln_f") else inner.norm
    seen: dict[tuple[str, int], Tensor] = {}

    def keep(key: tuple[str, int]) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            seen[key] = (output[0] if isinstance(output, tuple) else output)[0, -1].detach().double()

        return hook

    hooks = [norm.register_forward_pre_hook(lambda m, args: seen.update({("x", 0): args[0][0, -1].detach().double()}))]
    for layer, block in enumerate(blocks):
        attention = block.attn if hasattr(block, "attn") else block.self_attn
        hooks += [attention.register_forward_hook(keep(("attn_out", layer)))]
        hooks += [block.mlp.register_forward_hook(keep(("mlp_out", layer)))]
    with torch.no_grad():
        seen["logits", 0] = model(torch.tensor([PROMPT])).logits[0, -1].double()
    for hook in hooks:
        hook.remove()
    weight, x = norm.weight.detach().double(), seen["x", 0]
    if hasattr(inner, "ln_f"):
        centred = weight / torch.sqrt(x.var(unbiased=False) + norm.eps)
        row = lambda token: model.lm_head.weight[token].detach().double() * centred  # noqa: E731
        seen["u", 0] = torch.stack([row(t) - row(t).mean() for t in range(model.config.vocab_size)])
    else:
        factor = weight / torch.sqrt((x * x).mean() + norm.variance_epsilon)
        seen["u", 0] = model.lm_head.weight.detach().double() * factor
    return seen


def test_each_module_adds_what_plain_hooks_give(desk: Desk) -> None:
    at_the_end(desk)
    told, plain = attribute(desk, A, B), plain_parts(desk)
    direction = plain["u", 0][A] - plain["u", 0][B]
    assert len(told.contributions) == 2 * desk.layers
    for one in told.contributions:
        expected = float(direction @ plain[one.point, one.layer])
        assert one.value == pytest.approx(expected, rel=1e-3, abs=1e-5), (one.point, one.layer)
    assert told.logit == pytest.approx(float(plain["logits", 0][A] - plain["logits", 0][B]), abs=1e-5)


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


@pytest.mark.parametrize("site", ["resid_post.1", "attn_out.2", "resid_mid.2"])
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


@pytest.mark.parametrize("site", ["resid_post.1", "attn_out.2"])
def test_ahead_of_an_edited_stop_is_what_the_edit_leads_to(desk: Desk, site: str) -> None:
    desk.stop_at(site)
    desk.run(PROMPT)
    desk.ask(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)))
    ahead = attribute(desk, A, ahead=True)
    desk.ask(ask.ClearBreakpoints(session="a"))
    desk.stop_at(f"resid_post.{desk.layers - 1}")
    desk.ask(ask.Resume(session="a"))
    assert ahead.logit == attribute(desk, A).logit
