"""Catching taps: in order of execution, for the block only; the hooks are removed also after an exception."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from transformers import DynamicCache

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from tests.engine.model.looking import TOKENS, Subject, noise, run, subject
from tests.families import build

INSIDE = ["attn_in.3", "q.3", "k.3", "v.3", "k_rot.3", "q_rot.3", "attn_scores.3", "pattern.3", "z.3", "attn_out.3"]
LLAMA = [*INSIDE, "resid_mid.3", "mlp_in.3", "mlp_pre.3", "mlp_post.3", "mlp_out.3"]


class Leave(BaseException):
    """Leaves a forward as the gates do."""


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture(params=["sdpa", "eager"])
def llama(request: pytest.FixtureRequest) -> Iterator[Subject]:
    tiny = subject("llama", request.param)
    before = hooks_of(tiny.model)
    yield tiny
    assert hooks_of(tiny.model) == before
    assert not _get_current_function_mode_stack()


def test_sites_of_a_layer_are_met_in_order_of_execution(llama: Subject) -> None:
    order = run(llama, *reversed(LLAMA)).order
    assert set(order) == set(LLAMA)
    assert order.index("attn_in.3") == 0
    assert order.index("v.3") < order.index("k_rot.3") < order.index("q_rot.3") < order.index("z.3")
    assert order.index("attn_scores.3") < order.index("z.3") < order.index("attn_out.3") < order.index("resid_mid.3")
    assert order[-4:] == ["mlp_in.3", "mlp_pre.3", "mlp_post.3", "mlp_out.3"]


@pytest.mark.parametrize("site", LLAMA)
def test_leaving_by_an_exception_leaves_nothing_behind(llama: Subject, site: str) -> None:
    plain = run(llama).logits
    cache = DynamicCache(config=llama.model.config)

    def leave(tap: Tap, raw: Tensor) -> Tensor | None:
        raise Leave

    with pytest.raises(Leave), catch([llama.tap(site)], leave):
        llama.model(torch.tensor([TOKENS]), past_key_values=cache)
    assert "update" not in vars(cache)
    assert not _get_current_function_mode_stack()
    again = run(llama).logits
    assert plain is not None
    assert again is not None
    assert torch.equal(plain, again)


def test_looking_changes_no_bit(llama: Subject) -> None:
    plain, looked = run(llama).logits, run(llama, *LLAMA, "embed", "ln_final").logits
    assert plain is not None
    assert looked is not None
    assert torch.equal(plain, looked)


def test_a_replacement_made_from_outside_is_put_in_place_at_the_residual(llama: Subject) -> None:
    """A resumed pass does so: the tensor handed back is another one than the one met."""
    given = noise(7)(torch.empty(1, len(TOKENS), 32))

    def replace(tap: Tap, raw: Tensor) -> Tensor | None:
        return given.clone()

    with catch([llama.tap("resid_mid.3")], replace):
        put = llama.model(torch.tensor([TOKENS])).logits
    edited = run(llama, edits={"resid_mid.3": noise(7)}).logits
    assert edited is not None
    assert torch.equal(put, edited)


def test_what_the_listener_computes_with_the_model_is_not_listened_to(llama: Subject) -> None:
    met: list[str] = []

    def look_again(tap: Tap, raw: Tensor) -> Tensor | None:
        met.append(str(tap.site))
        llama.model(torch.tensor([[3, 4]]), use_cache=False)
        raw.float().softmax(-1)
        return None

    taps = [llama.tap(site) for site in LLAMA]
    with catch(taps, look_again):
        llama.model(torch.tensor([TOKENS]), past_key_values=DynamicCache(config=llama.model.config))
    assert sorted(met) == sorted(LLAMA)


def test_recomputed_maps_cannot_be_replaced() -> None:
    fused = subject("llama")
    with pytest.raises(RuntimeError, match="recomputed"), catch([fused.tap("pattern.3")], lambda tap, raw: raw + 1):
        fused.model(torch.tensor([TOKENS]))


def test_a_module_shared_by_two_layers_is_met_in_the_layer_asked_for() -> None:
    model = build("llama")
    model.model.layers[5].mlp = model.model.layers[2].mlp
    shared = Subject(model, discover(model))
    assert shared.tap("mlp_post.2").module is shared.tap("mlp_post.5").module
    both = run(shared, "mlp_post.2", "mlp_post.5", "mlp_out.2", "mlp_out.5")
    assert both.order == ["mlp_post.2", "mlp_out.2", "mlp_post.5", "mlp_out.5"]
    edited = run(shared, "mlp_out.2", "mlp_out.5", edits={"mlp_post.5": noise(1)})
    assert torch.equal(edited["mlp_out.2"], both["mlp_out.2"])
    assert not torch.equal(edited["mlp_out.5"], both["mlp_out.5"])


def test_an_edit_of_q_rot_is_what_attention_uses(llama: Subject) -> None:
    seen = run(llama, "attn_scores.3", edits={"q_rot.3": torch.zeros_like})
    seen_keys = torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool).tril()
    assert not seen["attn_scores.3"].transpose(0, 1)[:, seen_keys].any()


def test_without_taps_nothing_is_hooked() -> None:
    tiny = subject("gpt2")
    before = hooks_of(tiny.model)
    with catch([], lambda tap, raw: None):
        assert hooks_of(tiny.model) == before
