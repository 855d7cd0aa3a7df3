"""A cross-layer transcoder's features are written to the MLPs from their own layer on: an edit of them is a hook on
each of these. A skip transcoder adds what it reads, through a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale, Zero
from tests import transcoders
from tests.engine.added.adding import add
from tests.engine.desk import Desk, array, desk_of, tokens
from tests.engine.persistence.roundtrip import carry, future, pair_of, reading, same
from tests.families import build

PROMPT, LAYER, LAYERS, UNIT = tokens(12), 1, 4, 7
SITE = f"clt.{LAYER}"
FAMILIES = {"llama": "model.layers.{}.mlp", "gpt2": "transformer.h.{}.mlp"}
Change = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def desk(family: str) -> Iterator[Desk]:
    desk = desk_of(family, layers=LAYERS)
    desk.open()
    yield desk
    desk.close_all()
    for name in {module.name for module in desk.ask(ask.ListAddedModules()).modules}:
        desk.ask(ask.RemoveModule(name=name))
    assert desk.engine.budget.held()["modules"] == 0


def saved(desk: Desk, folder: Path, layers: range = range(LAYERS), **fields: Any) -> dict[int, transcoders.Tensors]:
    """Add layers of a cross-layer transcoder, and return the tensors of all."""
    drawn = transcoders.drawn_across(desk.engine.anatomy.hidden_size, desk.layers)
    transcoders.across_saved(folder, drawn)
    for layer in layers:
        add_layer(desk, folder, layer, **fields)
    return drawn


def add_layer(desk: Desk, folder: Path, layer: int, name: str = "clt", **fields: Any) -> None:
    add(desk, folder, f"mlp_in.{layer}", name, layer=layer, **fields)


def hooked(family: str, changes: Mapping[int, Change], layers: int = LAYERS) -> tuple[dict[int, Tensor], Tensor]:
    """Return what the plain model's MLPs are given [T, D], and the logits [V], with their outputs changed."""
    model, given = build(family, layers=layers), {}

    def hook(layer: int) -> Any:
        def changed(module: Any, args: Any, output: Tensor) -> Tensor | None:
            given[layer] = args[0][0].clone()
            change = changes.get(layer)
            return None if change is None else change(args[0][0], output[0])[None]

        return changed

    for layer in range(layers):
        model.get_submodule(FAMILIES[family].format(layer)).register_forward_hook(hook(layer))
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT]), use_cache=False, logits_to_keep=1).logits[0, -1]
    return given, logits


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
    desk: Desk, family: str, tmp_path: Path
) -> None:
    tensors = saved(desk, tmp_path)[LAYER]
    (module,) = (one for one in desk.ask(ask.ListAddedModules()).modules if one.site == SITE)
    assert (module.kind, module.writes, module.why_not_edited) == ("cross_layer_transcoder", "mlp_out.1", None)
    desk.stop_at(f"{SITE}[{UNIT}]", "value > -1")
    assert desk.run(PROMPT, 1).site == f"{SITE}[{UNIT}]"
    given, _ = hooked(family, {})
    torch.testing.assert_close(desk.value(SITE), transcoders.encode(given[LAYER], tensors), rtol=1e-4, atol=1e-5)
    desk.edit(Add(vector=array(2.0)))
    finished = desk.outcome(desk.resume(free=True))
    _, plain = hooked(family, added(tensors, ones(2.0)))
    torch.testing.assert_close(finished.logits, plain, rtol=1e-4, atol=1e-4)
    _, here_alone = hooked(family, {LAYER: added(tensors, ones(2.0))[LAYER]})
    assert float((plain - here_alone).abs().max()) > 1e-2


def test_a_rule_is_written_on_at_stops_in_later_layers_and_after_going_back(
    desk: Desk, family: str, tmp_path: Path
) -> None:
    tensors = saved(desk, tmp_path)[LAYER]
    desk.steer(f"{SITE}[{UNIT}]", Add(vector=array(1.5)))
    straight = desk.outcome(desk.run(PROMPT, 1)).logits
    torch.testing.assert_close(straight, hooked(family, added(tensors, ones(1.5)))[1], rtol=1e-4, atol=1e-4)
    for site in ("resid_post.2", "mlp_out.3", f"clt.3[{UNIT}]", "mlp_in.2"):
        desk.open()
        desk.steer(f"{SITE}[{UNIT}]", Add(vector=array(1.5)))
        desk.stop_at(site, "value > -1000" if "[" in site else None)
        desk.run(PROMPT, 1)
        desk.clear()
        assert torch.equal(desk.outcome(desk.resume(free=True)).logits, straight)


def test_a_stop_that_goes_on_unedited_changes_no_bit(desk: Desk, tmp_path: Path) -> None:
    saved(desk, tmp_path)
    straight = desk.outcome(desk.run(PROMPT, 3))
    desk.open()
    desk.stop_at(SITE)
    desk.run(PROMPT, 3)
    desk.edit(Scale(factor=1.0))
    desk.clear()
    assert desk.outcome(desk.resume(free=True)) == straight


def test_without_the_error_term_all_layers_together_make_what_each_mlp_makes(
    desk: Desk, family: str, tmp_path: Path
) -> None:
    layers = saved(desk, tmp_path, error_term=False)
    for layer in range(LAYERS):
        desk.steer(f"clt.{layer}", Scale(factor=1.0))
    finished = desk.outcome(desk.run(PROMPT, 1))
    seen: dict[int, Tensor] = {}

    def replaced(layer: int) -> Change:
        def change(given: Tensor, made: Tensor) -> Tensor:
            seen[layer] = transcoders.encode(given, layers[layer])
            parts = [seen[below] @ layers[below]["W_dec"][:, layer - below] for below in range(layer + 1)]
            return torch.stack(parts).sum(0) + layers[layer]["b_dec"]

        return change

    _, plain = hooked(family, {layer: replaced(layer) for layer in range(LAYERS)})
    torch.testing.assert_close(finished.logits, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_sweep_over_features_is_that_of_plain_hooks(desk: Desk, family: str, tmp_path: Path, mode: Any) -> None:
    tensors = saved(desk, tmp_path)[LAYER]
    swept = ask.Sweep(
        session="a",
        corrupted=PROMPT,
        site=f"{SITE}[*]",
        over=("neuron",),
        metrics=("logit(17)",),
        edit=Zero(),
        mode=mode,
    )
    found = to_tensor(desk.ask(swept).measured[0].values)
    features = transcoders.encode(hooked(family, {})[0][LAYER], tensors)
    for unit in (0, UNIT, 13):
        changed = torch.zeros_like(features)
        changed[:, unit] = -features[:, unit]
        assert abs(float(found[unit]) - float(hooked(family, added(tensors, changed))[1][17])) < 1e-3
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


def test_a_skip_transcoder_makes_what_its_matrix_adds(desk: Desk, family: str, tmp_path: Path) -> None:
    tensors = transcoders.drawn(desk.engine.anatomy.hidden_size, skip=True)
    transcoders.set_saved(tmp_path, {LAYER: tensors})
    add_layer(desk, tmp_path, LAYER, "skip", error_term=False)
    desk.steer(f"skip.{LAYER}", Scale(factor=1.0))
    finished = desk.outcome(desk.run(PROMPT, 1))

    def made(given: Tensor, _: Tensor) -> Tensor:
        features = transcoders.encode(given, tensors)
        return features @ tensors["W_dec"] + tensors["b_dec"] + given @ tensors["W_skip"].T

    torch.testing.assert_close(finished.logits, hooked(family, {LAYER: made})[1], rtol=1e-4, atol=1e-4)


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
    skipping = transcoders.drawn(width, later=LAYERS - LAYER) | {"W_skip": torch.zeros(width, width)}
    transcoders.across_saved(tmp_path / "skipping", {LAYER: skipping})
    with pytest.raises(UsageError, match=r"The file has W_skip besides"):
        add_layer(desk, tmp_path / "skipping", LAYER)
