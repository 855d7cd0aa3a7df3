"""The geometry is read off a forward pass; a cache that cannot be paged exactly is refused by name."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry, positions_per_page, probe_geometry
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.errors import ModelRefused, UsageError
from tests.engine.memory.kv.runs import CPU, forward, tokens
from tests.families import FAMILIES, REFUSED, build, drawn

REFUSED_HERE = dict.fromkeys(("rwkv", "xlnet", "openai-gpt"), "takes no cache")
REFUSED_HERE |= {"recurrent_gemma": "state", "minimax": "cache of its own"}


def layer(**changes) -> LayerGeometry:
    fields = {"cache_layer": 0, "kind": "full", "kv_heads": 8, "key_dim": 128, "value_dim": 128}
    return LayerGeometry(**{**fields, "dtype": torch.bfloat16, **changes})


@pytest.mark.parametrize(
    ("position_bytes", "positions"),
    [(1 << 20, 16), (131072, 16), (131071, 32), (12 * 2 * 768 * 4, 32), (8192, 256), (64, 256)],
)
def test_a_page_is_two_mebibytes_within_bounds(position_bytes, positions):
    assert positions_per_page(position_bytes) == positions


def test_the_page_size_can_be_overridden_by_a_power_of_two_only():
    assert GroupGeometry.lay_out([layer()], 16).page_positions == 16
    for wrong in (24, -16):
        with pytest.raises(UsageError, match="power of two"):
            GroupGeometry.lay_out([layer()], wrong)


def test_layers_of_one_shape_form_one_run():
    alike = [layer(cache_layer=i) for i in range(3)]
    other = layer(cache_layer=3, value_dim=64, dtype=torch.float32)
    group = GroupGeometry.lay_out([*alike, other, layer(cache_layer=4)], 16)
    assert [(run.first, run.layers, run.value_dim) for run in group.runs] == [(0, 3, 128), (3, 1, 64), (4, 1, 128)]
    assert group.page_bytes == 16 * group.position_bytes
    assert group.page_bytes == 16 * (4 * 8 * 256 * 2 + 8 * 192 * 4)
    assert group.describe().layers == (0, 1, 2, 3, 4)


def kinds(name: str) -> str:
    geometry = probe_geometry(build(name), CPU, 16)
    return " ".join(layer.kind for layer in geometry.layers)


def test_what_the_probe_reads():
    assert kinds("llama") == "full " * 7 + "full"
    assert kinds("mistral") == "window " * 7 + "window"
    assert kinds("gemma3_text").split()[:3] == ["window", "window", "full"]
    assert kinds("jamba").split()[:5] == ["recurrent", "full", "recurrent", "recurrent", "recurrent"]
    assert set(kinds("falcon_h1").split()) == {"recurrent+full"}
    assert set(kinds("nemotron_h").split()) == {"recurrent", "none", "full"}
    latent = probe_geometry(build("deepseek_v3"), CPU, 16).layers[0]
    assert latent.key_dim != latent.value_dim
    mamba = probe_geometry(build("mamba2"), CPU, 16)
    assert (mamba.cache_argument, mamba.groups) == ("cache_params", ())
    assert mamba.recurrent_state_bytes > 0
    half = probe_geometry(build("qwen3", dtype=torch.bfloat16), CPU)
    assert half.layers[0].dtype == torch.bfloat16
    assert half.groups[0].page_positions == 256


def test_full_and_window_layers_have_groups_of_their_own():
    groups = probe_geometry(build("gemma3_text"), CPU, 16).groups
    assert [(group.kind, group.window, [layer.cache_layer for layer in group.layers]) for group in groups] == [
        ("full", None, [2, 5]),
        ("window", 8, [0, 1, 3, 4, 6, 7]),
    ]


@pytest.mark.parametrize("name", sorted(REFUSED_HERE))
def test_refused_by_name_with_the_reason(name):
    model = {**FAMILIES, **REFUSED}[name]()
    with pytest.raises(
        ModelRefused, match=rf"^{type(model).__name__} cannot be served exactly: .*{REFUSED_HERE[name]}"
    ):
        probe_geometry(model, CPU, 16)


class ForeignLayer(DynamicCache().layer_class_to_replicate):
    """A class the library does not have, with the library's rows."""


class HalvingLayer(ForeignLayer):
    """Returns rows that pages would not."""

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        return keys, values / 2


def refusal(monkeypatch, change) -> str:
    """The reason given for a Llama whose one-token forward is followed by `change(cache)`."""
    model = build("llama")
    plain = type(model).forward

    def changed(self, *args, past_key_values=None, **kwargs):
        output = plain(self, *args, past_key_values=past_key_values, **kwargs)
        change(past_key_values, output)
        return output

    monkeypatch.setattr(type(model), "forward", changed)
    with pytest.raises(ModelRefused) as caught:
        probe_geometry(model, CPU, 16)
    return str(caught.value)


def test_state_beside_the_rows_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        assert "on cache layer 3: note" in refusal(patch, lambda cache, _: setattr(cache.layers[3], "note", 1))
    with monkeypatch.context() as patch:
        assert "on the cache: note" in refusal(patch, lambda cache, _: setattr(cache, "note", 1))


def test_another_cache_or_none_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        swap = lambda cache, output: output.__setitem__("past_key_values", DynamicCache())  # noqa: E731
        assert "it returned a DynamicCache" in refusal(patch, swap)
    with monkeypatch.context() as patch:
        empty = lambda cache, _: [vars(layer).update(keys=None, values=None) for layer in cache.layers]  # noqa: E731
        assert "ignored the cache" in refusal(patch, empty)
    with monkeypatch.context() as patch:
        assert "its cache grew from 8 to 9" in refusal(patch, lambda cache, _: cache.layers.append(cache.layers[0]))


def test_an_unknown_layer_class_is_refused_where_it_returns_other_rows(monkeypatch):
    from djinn_jupyter.engine.memory.kv import geometry

    monkeypatch.setitem(geometry.cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", HalvingLayer)
    with pytest.raises(ModelRefused, match="layer 0 is a HalvingLayer: HalvingLayer returns other rows than a Dynamic"):
        probe_geometry(build("llama"), CPU, 16)


def test_an_unknown_layer_class_with_the_same_rows_is_paged(monkeypatch):
    from djinn_jupyter.engine.memory.kv import geometry

    model = build("llama")
    known = probe_geometry(model, CPU, 16)
    monkeypatch.setitem(geometry.cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", ForeignLayer)
    assert probe_geometry(model, CPU, 16).groups == known.groups
    cache = PagedCache.create(model.config, known, [Slab(known.groups[0], CPU, 1 << 24)])
    cache.reserve(0, 4)
    forward(model, "past_key_values", cache, tokens(4))
    cache.commit(4)
    assert cache.statistics().pages == 1


def test_rows_of_another_shape_than_the_probe_saw_are_refused():
    model = build("llama")
    geometry = probe_geometry(model, CPU, 16)
    cache = PagedCache.create(model.config, geometry, [Slab(geometry.groups[0], CPU, 1 << 24)])
    cache.reserve(0, 4)
    with pytest.raises(ModelRefused, match="batch 1"):
        forward(model, "past_key_values", cache, tokens(4).repeat(2, 1))
    with pytest.raises(ModelRefused, match="bfloat16"):
        forward(model.to(torch.bfloat16), "past_key_values", cache, tokens(4))
    cache.check(contents=True)


@pytest.mark.parametrize("name", drawn(sorted(set(FAMILIES) - set(REFUSED_HERE))))
def test_every_family_is_probed_and_leaves_no_trace_in_the_model(name):
    model = FAMILIES[name]()
    before = forward_without_cache(model)
    geometry = probe_geometry(model, CPU, 16)
    assert probe_geometry(model, CPU, 16) == geometry
    assert torch.equal(forward_without_cache(model), before)
    assert {layer.cache_layer for group in geometry.groups for layer in group.layers} == {
        layer.cache_layer for layer in geometry.layers if layer.kv_heads
    }


@torch.no_grad()
def forward_without_cache(model) -> torch.Tensor:
    return model(tokens(5), use_cache=False).logits
