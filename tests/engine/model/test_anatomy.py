"""The content of an anatomy: sites and their absences, modules, forms, and the models that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.errors import ModelRefused, UnknownSite
from djinn_jupyter.wire.sites import parse_site
from tests.engine.model.looking import TOKENS, run, subject
from tests.families import REFUSED, build


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ("resid_post.20", r"There is no resid_post\.20: this model has layers 0\.\.7\."),
        ("z.3[4]", r"this site has 4 heads: 0\.\.3"),
        ("v.3[2]", r"this site has 2 heads: 0\.\.1"),
        ("resid_pre.0[32]", r"this site has 32 features: 0\.\.31"),
        ("attn_out_post.2", r"attn_out is what is added to the residual"),
        ("model.layers.3.self_atn", r"did you mean 'model\.layers\.3\.self_attn'"),
        ("resid_pots.4", r"no module or point 'resid_pots\.4'; did you mean 'resid_post\.4'\?$"),
        ("model.layers", r"is not run in one pass"),
        ("model.embed_tokens.input", r"no activations with an axis of positions"),
        ("lm_head", r"the last position only; use logits or the last resid_post"),
    ],
)
def test_a_site_that_is_not_there_is_refused_with_what_is(site: str, says: str) -> None:
    with pytest.raises(UnknownSite, match=says):
        subject("llama").tap(site)


def test_an_absent_point_names_the_nearest_layer_that_has_it() -> None:
    with pytest.raises(UnknownSite, match=r"There is no z\.3 here: this layer has no attention\. Nearest: z\.1\."):
        subject("jamba").tap("z.3")


def test_a_layer_by_its_path_is_the_boundary_behind_or_before_it() -> None:
    llama = subject("llama")
    assert llama.tap("model.layers.3").boundary == 4
    assert llama.tap("model.layers.3.input").boundary == 3
    assert llama.tap("3").boundary == llama.tap("resid_pre.4").boundary == 4


@pytest.mark.parametrize("name", ["gpt2", "jamba", "mixtral"])
def test_a_module_path_gives_what_a_plain_hook_on_it_gives(name: str) -> None:
    tiny = subject(name)
    paths = [one.path for one in tiny.anatomy.modules if one.layer == 5 and one.called == 1]
    seen: dict[str, Any] = {}

    def watching(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            seen[path] = output if isinstance(output, torch.Tensor) else output[0]

        return hook

    resolved = []
    for path in paths:
        try:
            tap = tiny.tap(path)
        except UnknownSite:
            continue
        if tap.kind != "boundary":
            resolved.append(path)
    assert len(resolved) >= 8
    handles = [tiny.model.get_submodule(path).register_forward_hook(watching(path)) for path in resolved]
    values = run(tiny, *resolved)
    for handle in handles:
        handle.remove()
    for path in resolved:
        assert torch.equal(values.raw[path].flatten(), seen[path].flatten()), path


def test_modules_before_the_layers_are_read_only_unless_they_make_the_hidden_state() -> None:
    llama = subject("llama")
    assert llama.tap("model.embed_tokens").editable
    rotary = llama.tap("model.rotary_emb")
    assert not rotary.editable
    assert rotary.reason
    assert llama.tap("model.norm").stage == 8


@pytest.mark.parametrize("name", ["zamba2", "gemma3n_text"])
def test_an_embedding_that_later_layers_read_too_is_read_only(name: str) -> None:
    embed = subject(name).tap("embed")
    assert not embed.editable
    assert embed.reason
    assert "computes it anew" in embed.reason


def test_the_embedding_of_every_other_family_can_be_edited() -> None:
    assert subject("llama").tap("embed").editable
    assert subject("gpt2").tap("embed").editable


def test_a_width_that_is_the_prompts_length_is_not_taken_for_its_positions() -> None:
    """The model has as many residual streams as the shorter probe has tokens."""
    assert discover(build("gemma3n_text:five")).hidden_size == 32


def test_a_hidden_state_with_several_rows_a_token_is_refused_by_its_shape() -> None:
    with pytest.raises(ModelRefused, match=r"no axis with one row a token: 5 tokens make \(1, 15, 32\)"):
        discover(build("prophetnet"))


def test_layers_that_a_text_does_not_run_are_absent_and_the_others_counted_without_them() -> None:
    mllama = subject("mllama")
    stack = mllama.anatomy
    assert stack.absent == ("model.language_model.layers.3",)
    assert [path.rpartition(".")[2] for path in stack.paths] == ["0", "1", "2", "4", "5", "6", "7"]
    assert mllama.tap("model.language_model.layers.4").boundary == mllama.tap("resid_post.3").boundary == 4
    assert {one.layer for one in mllama.anatomy.modules if one.path.startswith("model.language_model.layers.4.")} == {3}
    with pytest.raises(UnknownSite, match=r"layers\.3 is not run in one pass"):
        mllama.tap("model.language_model.layers.3")


def test_layers_that_share_keys_name_the_mapping() -> None:
    assert subject("gemma3n_text").anatomy.mappings == ("shared_kv_states",)
    assert subject("gemma3_text").anatomy.mappings == ()


@pytest.mark.parametrize(("name", "length"), [("llama", None), ("bloom", 2), ("falcon_h1", 1)])
def test_a_skipped_layer_returns_the_form_that_it_returns(name: str, length: int | None) -> None:
    tiny = subject(name)
    form = tiny.anatomy.forms[3]
    hidden = torch.zeros(1, 2, 32)
    assert form.length == length
    assert form.unwrap(form.wrap(hidden)) is hidden
    args, kwargs = form.put((torch.ones(1),), {"a": 1}, hidden)
    assert form.take(args, kwargs) is hidden


@pytest.mark.parametrize("name", REFUSED)
def test_families_without_a_standard_cache_are_refused_by_name(name: str) -> None:
    model = build(name)
    with pytest.raises(ModelRefused, match=type(model).__name__):
        discover(model)


class _Twice(LlamaForCausalLM):
    """Runs its last layer a second time."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.layers[-1].register_forward_hook(self._again)
        self._inside = False

    def _again(self, layer: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if self._inside:
            return output
        self._inside = True
        again: torch.Tensor = layer(output, position_embeddings=self.model.rotary_emb(output, torch.arange(1)[None]))
        self._inside = False
        return again


class _Nudged(LlamaForCausalLM):
    """Changes the hidden state between two layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.layers[4].register_forward_pre_hook(lambda layer, args: (args[0] + 1, *args[1:]))


@pytest.mark.parametrize(("kind", "says"), [(_Twice, "2 times in one pass"), (_Nudged, "changes the hidden state")])
def test_layers_that_do_not_simply_follow_each_other_are_refused(kind: type[LlamaForCausalLM], says: str) -> None:
    config = build("llama").config
    with pytest.raises(ModelRefused, match=says):
        discover(kind(config).eval())


def test_points_are_found_under_other_names_than_those_of_the_library() -> None:
    """Nothing goes by name: a Llama whose modules are all called otherwise has the same points."""
    model = build("llama")
    for layer in model.model.layers:
        for module, old, new in ((layer.mlp, "down_proj", "north"), (layer.self_attn, "o_proj", "south")):
            setattr(module, new, getattr(module, old))
            object.__setattr__(module, old, module._modules.pop(old))
    renamed, plain = discover(model), subject("llama").anatomy
    assert {key for key, tap in renamed.taps.items() if isinstance(tap, str)} == {
        key for key, tap in plain.taps.items() if isinstance(tap, str)
    }
    tap = renamed.resolve(parse_site("z.3"))
    assert tap.module is model.model.layers[3].self_attn.south


def test_studying_leaves_no_trace() -> None:
    model = build("gpt2")
    before = model(torch.tensor([TOKENS])).logits
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    discover(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(torch.tensor([TOKENS])).logits, before)
