"""A cross-layer transcoder's features are written to the MLPs from their own layer on: an edit of them is a hook on
each of these. A skip transcoder adds what it reads, through a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale, Zero
from tests import transcoders
from tests.engine.added.adding import add
from tests.engine.added.plain_mlps import LAYERS, PROMPT, Change, hooked, hooked_at
from tests.engine.desk import Desk, array, desk_of
from tests.engine.persistence.roundtrip import carry, future, pair_of, reading, same
from tests.families import build

LAYER, UNIT = 1, 7
SITE = f"clt.{LAYER}"


@pytest.fixture(params=["mlp_in", "resid_mid"])
def point(request: pytest.FixtureRequest) -> str:
    """What a transcoder reads."""
    return str(request.param)


def saved(
    desk: Desk, folder: Path, point: str = "mlp_in", *, skip: bool = False, **fields: Any
) -> dict[int, transcoders.Tensors]:
    """Add all layers of a cross-layer transcoder, and return their tensors."""
    drawn = transcoders.drawn_across(desk.engine.anatomy.hidden_size, desk.layers, skip=skip)
    transcoders.across_saved(folder, drawn, point=point)
    for layer in range(LAYERS):
        add_layer(desk, folder, layer, point, **fields)
    return drawn


def add_layer(desk: Desk, folder: Path, layer: int, point: str = "mlp_in", name: str = "clt", **fields: Any) -> None:
    add(desk, folder, f"{point}.{layer}", name, layer=layer, **fields)


def added(tensors: transcoders.Tensors, features_TF: Tensor, layer: int = LAYER) -> dict[int, Change]:
    """Return the changes that add what so much of each feature writes into each layer."""

    def change(later: int) -> Change:
        return lambda given, made: made + features_TF @ tensors["W_dec"][:, later - layer]

    return {later: change(later) for later in range(layer, LAYERS)}


def ones(value: float = 1.0, unit: int = UNIT) -> Tensor:
    features = torch.zeros(len(PROMPT), transcoders.FEATURES)
    features[:, unit] = value
    return features


def test_features_are_read_and_an_edit_is_written_to_every_mlp_from_there_on(
    desk: Desk, family: str, tmp_path: Path, point: str
) -> None:
    tensors = saved(desk, tmp_path, point)[LAYER]
    (module,) = (one for one in desk.ask(ask.ListAddedModules()).modules if one.site == SITE)
    assert (module.kind, module.writes, module.why_not_edited) == ("cross_layer_transcoder", "mlp_out.1", None)
    desk.stop_at(f"{SITE}[{UNIT}]", "value > -1")
    assert desk.run(PROMPT, 1).site == f"{SITE}[{UNIT}]"
    given = hooked(family, point=point).read[LAYER]
    torch.testing.assert_close(desk.value(SITE), transcoders.encode(given, tensors), rtol=1e-4, atol=1e-5)
    desk.edit(Add(vector=array(2.0)))
    finished = desk.outcome(desk.resume(free=True))
    plain = hooked(family, added(tensors, ones(2.0))).logits
    torch.testing.assert_close(finished.logits, plain, rtol=1e-4, atol=1e-4)
    here_alone = hooked(family, {LAYER: added(tensors, ones(2.0))[LAYER]}).logits
    assert float((plain - here_alone).abs().max()) > 1e-2


def test_a_rule_is_written_on_at_stops_in_later_layers_and_after_going_back(
    desk: Desk, family: str, tmp_path: Path, point: str
) -> None:
    tensors = saved(desk, tmp_path, point)[LAYER]
    desk.steer(f"{SITE}[{UNIT}]", Add(vector=array(1.5)))
    straight = desk.outcome(desk.run(PROMPT, 1)).logits
    torch.testing.assert_close(straight, hooked(family, added(tensors, ones(1.5))).logits, rtol=1e-4, atol=1e-4)
    for site in ("resid_mid.1", "mlp_in.1", "resid_post.2", "mlp_out.3", f"clt.3[{UNIT}]", "mlp_in.2"):
        desk.open()
        desk.steer(f"{SITE}[{UNIT}]", Add(vector=array(1.5)))
        desk.stop_at(site, "value > -1000" if "[" in site else None)
        desk.run(PROMPT, 1)
        desk.clear()
        assert torch.equal(desk.outcome(desk.resume(free=True)).logits, straight)


def test_without_the_error_term_all_layers_together_make_what_each_mlp_makes(
    desk: Desk, family: str, tmp_path: Path, point: str
) -> None:
    skip = point == "mlp_in"
    layers = saved(desk, tmp_path, point, skip=skip, error_term=False)
    for layer in range(LAYERS):
        desk.steer(f"clt.{layer}", Scale(factor=1.0))
    finished = desk.outcome(desk.run(PROMPT, 1))
    seen: dict[int, Tensor] = {}

    def replaced(layer: int) -> Change:
        def change(given: Tensor, made: Tensor) -> Tensor:
            seen[layer] = transcoders.encode(given, layers[layer])
            parts = [seen[below] @ layers[below]["W_dec"][:, layer - below] for below in range(layer + 1)]
            skipped = given @ layers[layer]["W_skip"] if skip else 0.0  # circuit-tracer: inputs @ W_skip[layer]
            return torch.stack(parts).sum(0) + layers[layer]["b_dec"] + skipped

        return change

    plain = hooked(family, {layer: replaced(layer) for layer in range(LAYERS)}, point).logits
    torch.testing.assert_close(finished.logits, plain, rtol=1e-4, atol=1e-4)


def test_an_edit_of_the_residual_is_in_what_is_read_of_it(desk: Desk, family: str, tmp_path: Path) -> None:
    tensors = saved(desk, tmp_path, "resid_mid", error_term=False)[LAYER]
    desk.steer(SITE, Scale(factor=1.0))
    desk.steer(f"resid_mid.{LAYER}", Add(vector=array(0.5)))
    desk.stop_at(f"resid_post.{LAYER}")
    desk.run(PROMPT, 1)
    given = hooked(family, point="resid_mid").read[LAYER] + 0.5
    features = transcoders.encode(given, tensors)
    made = given + features @ tensors["W_dec"][:, 0] + tensors["b_dec"]
    torch.testing.assert_close(desk.value(f"resid_post.{LAYER}"), made, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("hook", "writes"), [("hook_mlp_out", "mlp_out_post"), ("mlp.hook_out", "mlp_out")])
def test_behind_a_norm_it_writes_what_the_norm_makes_where_its_files_say_so(
    tmp_path: Path, hook: str, writes: str
) -> None:
    desk = desk_of("gemma2", layers=LAYERS)
    drawn = transcoders.drawn_across(desk.engine.anatomy.hidden_size, LAYERS)
    transcoders.across_saved(tmp_path, drawn, point="resid_mid", written=hook)
    desk.open()
    try:
        add_layer(desk, tmp_path, LAYER, "resid_mid")
        (module,) = desk.ask(ask.ListAddedModules()).modules
        assert (module.writes, module.note) == (f"{writes}.{LAYER}", None)
        desk.steer(f"{SITE}[{UNIT}]", Add(vector=array(2.0)))
        finished = desk.outcome(desk.run(PROMPT, 1))
    finally:
        desk.close_all()
        desk.ask(ask.RemoveModule(name="clt"))
    layer = "model.layers.{}."
    changed = layer + ("post_feedforward_layernorm" if writes == "mlp_out_post" else "mlp")
    model, given = build("gemma2", layers=LAYERS), layer + "pre_feedforward_layernorm"
    plain = hooked_at(model, given, changed, added(drawn[LAYER], ones(2.0)))
    torch.testing.assert_close(finished.logits, plain.logits, rtol=1e-4, atol=1e-4)


def test_a_sweep_over_features_is_that_of_plain_hooks(desk: Desk, family: str, tmp_path: Path) -> None:
    tensors = saved(desk, tmp_path)[LAYER]
    asked: dict[str, Any] = {"corrupted": PROMPT, "site": f"{SITE}[*]", "over": ("neuron",), "edit": Zero()}
    features = transcoders.encode(hooked(family).read[LAYER], tensors)
    for mode in ("exact", "fast"):
        reply = desk.ask(Sweep(session=desk.open(), metrics=("logit(17)",), mode=mode, **asked))
        found = to_tensor(reply.measured[0].values)
        for unit in (0, UNIT, 13):
            changed = torch.zeros_like(features)
            changed[:, unit] = -features[:, unit]
            assert abs(float(found[unit]) - float(hooked(family, added(tensors, changed)).logits[17])) < 1e-3
        assert found.unique().numel() > 5


def test_it_goes_with_a_checkpoint(tmp_path: Path) -> None:
    one, other = pair_of("llama")
    drawn = transcoders.drawn_across(one.engine.anatomy.hidden_size, one.layers)
    transcoders.across_saved(tmp_path, drawn)
    for desk in (one, other):
        add_layer(desk, tmp_path, LAYER)
        desk.open()
    one.stop_at(f"{SITE}[{UNIT}]")
    one.run(PROMPT, 3)
    one.edit(Add(vector=array(1.5)))
    one.clear()
    one.stop_at("resid_post.2")
    one.resume()
    carry(one, other)
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))
    for desk in (one, other):
        desk.close_all()
        desk.ask(ask.RemoveModule(name="clt"))


def test_a_skip_transcoder_makes_what_its_matrix_adds(desk: Desk, family: str, tmp_path: Path, point: str) -> None:
    tensors = transcoders.drawn(desk.engine.anatomy.hidden_size, skip=True)
    transcoders.set_saved(tmp_path, {LAYER: tensors}, point=point)
    add_layer(desk, tmp_path, LAYER, point, "skip", error_term=False)
    desk.steer(f"skip.{LAYER}", Scale(factor=1.0))
    finished = desk.outcome(desk.run(PROMPT, 1))

    def made(given: Tensor, _: Tensor) -> Tensor:
        features = transcoders.encode(given, tensors)
        return features @ tensors["W_dec"] + tensors["b_dec"] + given @ tensors["W_skip"].T

    torch.testing.assert_close(finished.logits, hooked(family, {LAYER: made}, point).logits, rtol=1e-4, atol=1e-4)


def test_one_of_another_model_or_layer_is_said(desk: Desk, tmp_path: Path) -> None:
    width = desk.engine.anatomy.hidden_size
    transcoders.across_saved(tmp_path / "deep", {LAYER: transcoders.drawn(width, later=LAYERS)})
    with pytest.raises(UsageError, match=r"W_dec has shape \[24, 4, 32\]; a cross-layer transcoder at layer 1 of 4"):
        add_layer(desk, tmp_path / "deep", LAYER)
    transcoders.across_saved(tmp_path / "flat", {LAYER: transcoders.drawn(width)})
    with pytest.raises(UsageError, match=r"W_dec has shape \[24, 32\]; a cross-layer transcoder at layer 1 of 4 has"):
        add_layer(desk, tmp_path / "flat", LAYER)
    wide = transcoders.drawn(width, skip=True) | {"W_skip": torch.zeros(width, width + 1)}
    transcoders.set_saved(tmp_path / "wide", {LAYER: wide})
    with pytest.raises(UsageError, match=r"W_skip has shape \[32, 33\]; beside the others it has to be \[32, 32\]"):
        add_layer(desk, tmp_path / "wide", LAYER)
    skipping = transcoders.drawn(width, later=LAYERS - LAYER) | {"W_skip": torch.zeros(width, width + 1)}
    transcoders.across_saved(tmp_path / "skipping", {LAYER: skipping})
    with pytest.raises(UsageError, match=r"W_skip has shape \[32, 33\]; beside the others it has to be \[32, 32\]"):
        add_layer(desk, tmp_path / "skipping", LAYER)
