"""The effects of an attribution graph beside autograd by hand on the plain model, and finite differences in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.graphs.engine.graphing import influences
from djinn_jupyter.methods.graphs.request import GraphMade, MakeGraph
from djinn_jupyter.wire import requests as ask
from tests import saes, transcoders
from tests.engine.added.adding import add
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.gradients.plain_graph import Leaves, ReplacedLlama
from tests.families import build

pytestmark = pytest.mark.drawn

LINE, LAYERS, METRIC = tokens(8), 4, "logit(17) - logit(42)"
KINDS = ("by layer", "with a skip", "across layers", "some layers", "across layers with a skip", "of the residual")


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(getattr(request, "param", "llama"), layers=LAYERS)
    desk.open("graph")
    yield desk
    desk.close_all()
    for name in {module.name for module in desk.ask(ask.ListAddedModules()).modules}:
        desk.ask(ask.RemoveModule(name=name))


def added(desk: Desk, folder: Path, kind: str) -> dict[int, transcoders.Tensors]:
    """Add transcoders of a kind, and return their tensors."""
    width = desk.engine.anatomy.hidden_size
    if kind.startswith("across layers"):
        layers = transcoders.drawn_across(width, LAYERS, skip=kind.endswith("skip"))
        transcoders.across_saved(folder, layers)
    else:
        numbers = (1, 2) if kind == "some layers" else range(LAYERS)
        layers = {layer: transcoders.drawn(width, skip=kind == "with a skip", seed=layer) for layer in numbers}
        transcoders.set_saved(folder, layers)
    for layer in layers:
        add(desk, folder, f"{'resid_mid' if kind == 'of the residual' else 'mlp_in'}.{layer}", "tc", layer=layer)
    return layers


def replaced(layers: dict[int, transcoders.Tensors], kind: str) -> ReplacedLlama:
    return ReplacedLlama(build("llama", layers=LAYERS), layers, LINE, of_residual=kind == "of the residual")


def made(desk: Desk, **fields: Any) -> GraphMade:
    request = {"session": "graph", "line": LINE, "module": "tc", "metric": METRIC} | fields
    return desk.ask(MakeGraph(**request))


def place(site: str) -> tuple[int, int]:
    layer, unit = site.removeprefix("tc.").removesuffix("]").split("[")
    return int(layer), int(unit)


def row(found: GraphMade, effects: Leaves) -> Tensor:
    """Return effects in the order of a graph's sources."""
    features = [
        effects.features[layer][at, unit]
        for (layer, unit), at in zip(map(place, found.sites), found.positions, strict=True)
    ]
    errors = [effects.errors[layer] for layer in range(LAYERS)]
    return torch.cat([torch.stack(features), *errors, effects.embeddings])


@pytest.mark.parametrize("kind", KINDS)
def test_every_effect_is_that_of_autograd_by_hand(desk: Desk, tmp_path: Path, kind: str) -> None:
    layers = added(desk, tmp_path, kind)
    found = made(desk, features=8192)
    plain = replaced(layers, kind)
    assert len(found.sites) == found.active == sum(int((one > 0).sum()) for one in plain.leaves.features.values())
    edges = to_tensor(found.edges)
    output = plain.effects(lambda before, logits: logits[17] - logits[42])
    torch.testing.assert_close(edges[0], row(found, output), rtol=1e-3, atol=2e-5)
    for number in range(0, len(found.sites), 7):
        (layer, unit), at = place(found.sites[number]), found.positions[number]
        effects = plain.effects(lambda before, logits, place=(layer, at, unit): before[place[0]][place[1], place[2]])
        torch.testing.assert_close(edges[1 + number], row(found, effects), rtol=1e-3, atol=2e-5)
    reached, bias, summed = map(to_tensor, (found.reached, found.bias, found.summed))
    torch.testing.assert_close(summed, reached, rtol=0, atol=1e-4)
    torch.testing.assert_close(bias + edges.double().sum(1), summed, rtol=0, atol=1e-5)
    empty = Leaves(
        torch.zeros_like(plain.leaves.embeddings),
        {layer: torch.zeros_like(one) for layer, one in plain.leaves.features.items()},
        {layer: torch.zeros_like(one) for layer, one in plain.leaves.errors.items()},
    )
    for leaves, side in ((empty, bias), (plain.leaves, reached)):
        before, logits = plain.values(leaves)
        expected = [logits[17] - logits[42]]
        expected += [
            before[layer][at, unit] for (layer, unit), at in zip(map(place, found.sites), found.positions, strict=True)
        ]
        torch.testing.assert_close(side, torch.stack(expected).double().detach(), rtol=0, atol=1e-4)


def test_an_effect_is_the_finite_difference_in_the_model_so_held(desk: Desk, tmp_path: Path) -> None:
    layers = added(desk, tmp_path, "across layers")
    found, step = made(desk, features=8192), 0.5
    plain, edges = ReplacedLlama(build("llama", layers=LAYERS), layers, LINE), to_tensor(found.edges)
    before, logits = plain.values(plain.leaves)
    for number in range(0, len(found.sites), 29):
        (layer, unit), at = place(found.sites[number]), found.positions[number]
        value = plain.leaves.features[layer][at, unit].item()
        plain.leaves.features[layer][at, unit] = value * (1 + step)
        after, logits_after = plain.values(plain.leaves)
        plain.leaves.features[layer][at, unit] = value
        moved = ((logits_after[17] - logits_after[42]) - (logits[17] - logits[42])) / step
        assert abs(float(moved) - float(edges[0, number])) < 1e-3
        for target in range(number % 5, len(found.sites), 31):
            (later, own), there = place(found.sites[target]), found.positions[target]
            moved = (after[later][there, own] - before[later][there, own]) / step
            assert abs(float(moved) - float(edges[1 + target, number])) < 1e-3


def test_the_features_of_most_influence_are_chosen_and_the_sums_are_of_all(desk: Desk, tmp_path: Path) -> None:
    added(desk, tmp_path, "by layer")
    whole, part = made(desk, features=8192), made(desk, features=40)
    assert part.active == whole.active
    assert len(part.sites) == 40
    torch.testing.assert_close(to_tensor(part.summed), to_tensor(part.reached), rtol=0, atol=1e-4)
    every = influences(to_tensor(whole.edges), torch.ones(1), range(len(whole.sites)))[: len(whole.sites)]
    best = {(whole.sites[at], whole.positions[at]) for at in every.argsort(descending=True)[:20].tolist()}
    assert len(best & set(zip(part.sites, part.positions, strict=True))) >= 15


def test_without_a_metric_the_outputs_are_the_probable_logits_less_the_mean(desk: Desk, tmp_path: Path) -> None:
    layers = added(desk, tmp_path, "by layer")
    found = made(desk, metric=None, logits=3, features=5)
    logits = ReplacedLlama(build("llama", layers=LAYERS), layers, LINE).logits
    values, best = logits.softmax(-1).topk(3)
    torch.testing.assert_close(torch.tensor(found.weights), values, rtol=1e-4, atol=1e-6)
    centred = (logits - logits.mean())[best].double()
    torch.testing.assert_close(to_tensor(found.reached)[:3], centred, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(to_tensor(found.summed), to_tensor(found.reached), rtol=0, atol=1e-4)
    assert len(made(desk, metric=None, logits=64, probability=1e-6, features=1).outputs) == 1


@pytest.mark.parametrize("desk", ["gemma2", "gpt_neox"], indirect=True)
def test_the_sums_hold_in_other_families(desk: Desk, tmp_path: Path) -> None:
    added(desk, tmp_path, "by layer")
    found = made(desk, features=64)
    torch.testing.assert_close(to_tensor(found.summed), to_tensor(found.reached), rtol=0, atol=1e-3)
    capped = hasattr(desk.engine.forward.model.config, "final_logit_softcapping")
    assert any("bends its logits after the head" in note for note in found.notes) == capped


@pytest.mark.parametrize("metric", [METRIC, None])
def test_a_pass_that_overflows_has_no_graph_and_ends(tmp_path: Path, metric: str | None) -> None:
    model = build("llama", layers=LAYERS)
    with torch.no_grad():
        model.model.embed_tokens.weight[LINE[1]] = 1e30
    desk = build_desk(model)
    desk.open("graph")
    added(desk, tmp_path, "every layer")
    with pytest.raises(UnknownSite, match="numbers in its pass or its effects overflow"):
        made(desk, metric=metric)
    desk.close_all()


def test_what_has_no_graph_is_said(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(UnknownSite, match="There are no added modules named 'tc'; there are: none"):
        made(desk)
    width = desk.engine.anatomy.hidden_size
    add(desk, saes.saved(tmp_path / "sae", saes.drawn(width)), "resid_post.1", "sae")
    with pytest.raises(UsageError, match=r"sae\.1 is of kind sae; an attribution graph goes through transcoders"):
        made(desk, module="sae")
    normed = saes.saved(tmp_path / "n", saes.drawn(width), "transcoder", normalize_activations="layer_norm")
    add(desk, normed, "mlp_in.1", "normed")
    with pytest.raises(UsageError, match=r"normed\.1 has normalization layer_norm, with which a feature is no sum"):
        made(desk, module="normed")
    before = saes.saved(tmp_path / "b", saes.drawn(width), "transcoder")
    add(desk, before, "resid_pre.1", "before")
    with pytest.raises(UsageError, match=r"before\.1 reads resid_pre\.1 and has no graph: a transcoder is put back"):
        made(desk, module="before")
