"""A module that was trained on a model whose weights TransformerLens folded reads what these weights make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.wire.edits import Scale
from tests import saes, transcoders
from tests.engine.added.adding import add, opened
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.families import build
from tests.family_parts import HEADS, KV_HEADS

PROMPT, LAYER = tokens(12), 2
FOLDED = {"fold_ln": True, "fold_value_biases": True}
FAMILIES = ("gpt2", "qwen2")


@pytest.fixture(params=FAMILIES)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    yield from opened(desk_of(request.param))


def family_of(desk: Desk) -> str:
    return str(desk.engine.forward.model.config.model_type)


def layer_of(model: Any) -> Any:
    return model.transformer.h[LAYER] if hasattr(model, "transformer") else model.model.layers[LAYER]


@torch.no_grad()
def bare(desk: Desk, point: str) -> Tensor:
    """Return what the norm before attention or an MLP makes before its weight, of the residual that it is given."""
    layer = layer_of(build(family_of(desk)))
    names = {"attn_in": ("ln_1", "input_layernorm"), "mlp_in": ("ln_2", "pre_feedforward_layernorm")}[point]
    other = "post_attention_layernorm" if point == "mlp_in" else ""
    norm = next(one for name in (*names, other) if (one := getattr(layer, name, None)) is not None)
    x = desk.value(f"{'resid_pre' if point == 'attn_in' else 'resid_mid'}.{LAYER}")
    if isinstance(norm, torch.nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    epsilon = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


@torch.no_grad()
def value_biases(family: str, *, folded: bool) -> Tensor:
    """Return the biases of values [heads of values, d] that are folded; a LayerNorm's goes through the map."""
    layer = layer_of(build(family))
    if family != "gpt2":
        bias = layer.self_attn.v_proj.bias
        return torch.zeros(1) if bias is None else bias.reshape(KV_HEADS, -1)
    size, attention = layer.ln_1.weight.shape[0], layer.attn.c_attn
    made = attention.bias[2 * size :]
    return (made + layer.ln_1.bias @ attention.weight[:, 2 * size :] if folded else made).reshape(HEADS, -1)


def value_at(desk: Desk, site: str) -> Tensor:
    desk.stop_at(site)
    desk.run(PROMPT)
    return desk.value(site)


def require_alike(found: Tensor, expected: Tensor) -> None:
    assert 0 < (expected > 0).sum() < expected.numel()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def saved(folder: Path, tensors: saes.Tensors, hook: str, loaded: dict[str, Any], **cfg: Any) -> Path:
    said = {"hook_name": f"blocks.{LAYER}.{hook}", "model_from_pretrained_kwargs": loaded}
    return saes.saved(folder, tensors, metadata=said, **cfg)


@pytest.mark.parametrize(
    ("point", "hook", "subtracts"), [("mlp_in", "mlp.hook_in", True), ("attn_in", "ln1.hook_normalized", False)]
)
def test_a_folded_norm_is_read_before_its_weight(
    desk: Desk, tmp_path: Path, point: str, hook: str, subtracts: bool
) -> None:
    tensors, at = saes.drawn(desk.engine.anatomy.hidden_size), f"{point}.{LAYER}"
    folder = saved(tmp_path, tensors, hook, {"fold_ln": True}, apply_b_dec_to_input=subtracts)
    assert add(desk, folder, f"blocks.{LAYER}.{hook}", error_term=False).module.at == at
    features = value_at(desk, f"sae.{LAYER}")
    given, x = desk.value(at), bare(desk, point)
    assert float((given - x).abs().max()) > 0.1
    expected = saes.encode(x, tensors, apply_b_dec_to_input=subtracts)
    require_alike(features, expected)
    desk.edit(Scale(factor=1.0))
    gain = (given[0] - given[1]) / (x[0] - x[1])
    made = saes.decode(x, expected, tensors) * gain + (given - x * gain)
    torch.testing.assert_close(desk.value(at), made, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("point", "loaded"), [("v", FOLDED), ("z", FOLDED), ("z", {"fold_value_biases": True})])
def test_folded_biases_of_values_are_left_out(desk: Desk, tmp_path: Path, point: str, loaded: dict[str, Any]) -> None:
    whole = value_at(desk, f"{point}.{LAYER}")
    biases = value_biases(family_of(desk), folded="fold_ln" in loaded)
    if point == "z" and len(biases) > 1:
        biases = biases.repeat_interleave(whole.shape[1] // len(biases), 0)
    x = (whole - biases).flatten(1)
    assert (float((whole.flatten(1) - x).abs().max()) > 0.1) == (family_of(desk) in ("gpt2", "qwen2"))
    tensors = saes.drawn(x.shape[1])
    add(desk, saved(tmp_path, tensors, f"attn.hook_{point}", loaded), f"{point}.{LAYER}", error_term=False)
    features = value_at(desk, f"sae.{LAYER}")
    expected = saes.encode(x, tensors)
    require_alike(features, expected)
    desk.edit(Scale(factor=1.0))
    made = saes.decode(x, expected, tensors) + (whole.flatten(1) - x)
    torch.testing.assert_close(desk.value(f"{point}.{LAYER}").flatten(1), made, rtol=1e-4, atol=1e-4)


def test_one_head_is_read_and_changed_alone(desk: Desk, tmp_path: Path) -> None:
    whole = value_at(desk, f"z.{LAYER}")
    tensors = saes.drawn(whole.shape[2])
    folder = saved(tmp_path, tensors, "attn.hook_z", FOLDED, hook_head_index=3)
    biases = value_biases(family_of(desk), folded=True)
    x = whole[:, 3] - biases[len(biases) - 1]
    module = add(desk, folder, f"blocks.{LAYER}.attn.hook_z[3]", error_term=False).module
    assert (module.at, module.writes, module.note) == (f"z.{LAYER}[3]", f"z.{LAYER}[3]", None)
    features, expected = value_at(desk, f"sae.{LAYER}"), saes.encode(x, tensors)
    require_alike(features, expected)
    desk.edit(Scale(factor=1.0))
    found = desk.value(f"z.{LAYER}")
    assert torch.equal(found[:, :3], whole[:, :3])
    made = saes.decode(x, expected, tensors) + (whole[:, 3] - x)
    torch.testing.assert_close(found[:, 3], made, rtol=1e-4, atol=1e-4)


def test_a_head_that_is_another_is_said(tmp_path: Path) -> None:
    desk = desk_of("llama")
    folder = saved(tmp_path, saes.drawn(8), "attn.hook_k", {}, hook_head_index=1)
    for _ in opened(desk):
        assert add(desk, folder, f"k.{LAYER}[0]").module.note == (
            f"its files say that it was trained at blocks.{LAYER}.attn.hook_k[1]"
        )
        for at, said in (
            (f"k.{LAYER}", "reads 8 numbers"),
            (f"k.{LAYER}[0,1]", "or a head of one"),
            (f"k.{LAYER}[2]", "2 heads"),
        ):
            with pytest.raises((UsageError, UnknownSite), match=said):
                add(desk, folder, at, "other")


def test_the_copy_that_an_mlp_reads_is_the_residual_and_is_not_edited(tmp_path: Path) -> None:
    desk = desk_of("llama")
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    for _ in opened(desk):
        module = add(
            desk, saved(tmp_path, tensors, "hook_mlp_in", {"fold_ln": True}), f"blocks.{LAYER}.hook_mlp_in"
        ).module
        assert (module.at, module.writes) == (f"resid_mid.{LAYER}", None)
        assert "the MLP alone reads hook_mlp_in" in str(module.why_not_edited)
        require_alike(value_at(desk, f"sae.{LAYER}"), saes.encode(desk.value(f"resid_mid.{LAYER}"), tensors))


def test_what_a_norm_makes_of_an_output_is_read_there(tmp_path: Path) -> None:
    """TransformerLens's `hook_mlp_out` of Gemma 2 is behind the norm that stands there."""
    desk = desk_of("gemma2")
    for _ in opened(desk):
        folder = saved(tmp_path, saes.drawn(desk.engine.anatomy.hidden_size), "hook_mlp_out", {})
        assert add(desk, folder, f"blocks.{LAYER}.hook_mlp_out").module.at == f"mlp_out_post.{LAYER}"
        assert add(desk, folder, f"mlp_out.{LAYER}", "other").module.note == (
            f"its files say that it was trained at blocks.{LAYER}.hook_mlp_out"
        )


def test_a_gated_one_and_a_transcoder_are_computed_too(tmp_path: Path) -> None:
    desk = desk_of("gpt2")
    width = desk.engine.anatomy.hidden_size
    gated, skip = saes.drawn(width, "gated"), saes.drawn(width) | {"W_skip": torch.eye(width) * 0.5}
    folders = {
        "gated": saved(
            tmp_path / "g", gated, "mlp.hook_in", {"fold_ln": True}, apply_b_dec_to_input=False, architecture="gated"
        ),
        "trans": saved(tmp_path / "t", skip, "ln2.hook_normalized", {"fold_ln": True}, architecture="skip_transcoder"),
    }
    for _ in opened(desk):
        for name, folder in folders.items():
            add(desk, folder, f"mlp_in.{LAYER}", name, error_term=False)
        features = value_at(desk, f"gated.{LAYER}")
        require_alike(features, saes.encode(bare(desk, "mlp_in"), gated, "gated", apply_b_dec_to_input=False))
        x = bare(desk, "mlp_in")
        desk.close_all()
        desk.open()
        features = value_at(desk, f"trans.{LAYER}")
        expected = saes.encode(x, skip, apply_b_dec_to_input=False)
        require_alike(features, expected)
        desk.close_all()
        desk.open()
        desk.steer(f"trans.{LAYER}", Scale(factor=1.0))
        made = expected @ skip["W_dec"] + skip["b_dec"] + x @ skip["W_skip"].T
        found = value_at(desk, f"resid_post.{LAYER}") - desk.value(f"resid_mid.{LAYER}")
        torch.testing.assert_close(found, made, rtol=1e-3, atol=1e-3)


def test_a_bare_norm_of_circuit_tracer_is_computed(tmp_path: Path) -> None:
    desk = desk_of("gemma2")
    tensors = transcoders.drawn(desk.engine.anatomy.hidden_size)
    folder = transcoders.set_saved(tmp_path, {LAYER: tensors}, config=False)
    (folder / "config.yaml").write_text("feature_input_hook: ln2.hook_normalized\nfeature_output_hook: hook_mlp_out\n")
    for _ in opened(desk):
        module = add(desk, folder, f"blocks.{LAYER}.ln2.hook_normalized", layer=LAYER).module
        assert (module.at, module.writes, module.note) == (f"mlp_in.{LAYER}", f"mlp_out_post.{LAYER}", None)
        require_alike(value_at(desk, f"sae.{LAYER}"), transcoders.encode(bare(desk, "mlp_in"), tensors))


REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("gpt2", "ln2.hook_normalized", {}, {}, "have hook_normalized, .* hook_name mlp_in.2 for behind, or fold_ln in"),
    (
        "gpt2",
        "mlp.hook_in",
        {"fold_ln": True},
        {"normalize_activations": "layer_norm"},
        "fold_ln, .* with normalization",
    ),
    (
        "mixtral",
        "mlp.hook_in",
        {"fold_ln": True},
        {},
        r"have fold_ln, which is not computed here at mlp_in\.2: No norm",
    ),
    ("gpt_oss", "attn.hook_z", {"fold_value_biases": True}, {}, "have fold_value_biases, .* a sink takes a part"),
    (
        "qwen3",
        "attn.hook_q",
        {},
        {},
        r"hook_q of TransformerLens is before a norm of this model, and q\.2 is behind it",
    ),
]


@pytest.mark.parametrize(("family", "hook", "loaded", "cfg", "said"), REFUSED, ids=str)
def test_what_does_not_follow_from_the_value_is_refused_by_its_field(
    tmp_path: Path, family: str, hook: str, loaded: dict[str, Any], cfg: dict[str, Any], said: str
) -> None:
    desk = desk_of(family)
    with pytest.raises((UsageError, UnknownSite), match=said):
        add(desk, saved(tmp_path, saes.drawn(32), hook, loaded, **cfg), f"blocks.{LAYER}.{hook}")


def test_a_weight_of_zero_another_point_and_a_split_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[LAYER].post_attention_layernorm.weight[3] = 0
    desk, folder = build_desk(model), saved(tmp_path, saes.drawn(32), "mlp.hook_in", {"fold_ln": True})
    with pytest.raises(UsageError, match=r"have fold_ln, .* a weight of the norm is zero"):
        add(desk, folder, f"mlp_in.{LAYER}")
    add(desk, folder, "mlp_in.1")
    with pytest.raises(UsageError, match=r"have fold_ln, which is computed here at another point than resid_pre\.1"):
        add(desk, folder, "resid_pre.1", "other")
    monkeypatch.setattr(desk.engine.forward, "split", True)
    with pytest.raises(
        UsageError, match="have fold_ln, which is not computed here with a model that --tensor-parallel"
    ):
        add(desk, folder, "mlp_in.0")


def test_a_sink_is_found_by_what_heads_write_whatever_its_parameter_is_called(tmp_path: Path) -> None:
    class Attention(GptOssAttention):  # type: ignore[misc]
        @property
        def sinks(self) -> Tensor:
            return self.beside_logits

    model = build("gpt_oss")
    for layer in model.model.layers:
        layer.self_attn.beside_logits = layer.self_attn._parameters.pop("sinks")
        layer.self_attn.__class__ = Attention
    assert not any("sink" in name for name, _ in model.named_parameters())
    folder = saved(tmp_path, saes.drawn(32), "attn.hook_z", {"fold_value_biases": True})
    with pytest.raises(UsageError, match=r"have fold_value_biases, .* a sink takes a part, or a gate does"):
        add(build_desk(model), folder, f"blocks.{LAYER}.attn.hook_z")


@pytest.mark.parametrize(("family", "means"), [("gpt2", True), ("gpt_oss", False)])
def test_what_heads_write_are_means_of_their_values_unless_a_sink_takes_a_part(family: str, means: bool) -> None:
    assert set(discover(build(family, dtype=torch.bfloat16)).means) == {means}
