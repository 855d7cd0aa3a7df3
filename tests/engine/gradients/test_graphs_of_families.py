"""Attribution graphs of gated families, in 16 bits too, beside autograd on the plain model in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.methods.graphs.request import GraphMade, MakeGraph
from tests import transcoders
from tests.engine.added.adding import add
from tests.engine.desk import build_desk, tokens
from tests.engine.gradients.held_model import HeldModel
from tests.families import build

pytestmark = pytest.mark.drawn

LINE, LAYERS, METRIC = tokens(8), 3, "logit(17) - logit(42)"
ROUNDING: Final = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest effect
AFTER: Final = {"mlp.hook_out": "mlp", "hook_mlp_out": "post_feedforward_layernorm"}
KINDS: Final = {
    "llama": ("mlp_in", "mlp", "mlp.hook_out"),
    "qwen3": ("resid_mid", "post_attention_layernorm", "mlp.hook_out"),
    "gemma2": ("resid_mid", "pre_feedforward_layernorm", "hook_mlp_out"),
    "gemma3_text": ("mlp_in", "mlp", "hook_mlp_out"),
}


def graphed(model: Any, folder: Path, point: str, hook: str) -> tuple[GraphMade, dict[int, transcoders.Tensors]]:
    desk = build_desk(model)
    desk.open("graph")
    layers = transcoders.drawn_across(desk.engine.anatomy.hidden_size, LAYERS)
    transcoders.across_saved(folder, layers, point=point, written=hook)
    for layer in layers:
        add(desk, folder, f"{point}.{layer}", "tc", layer=layer)
    return desk.ask(MakeGraph(session="graph", line=LINE, module="tc", metric=METRIC, features=8192)), layers


def row(found: GraphMade, effects: dict[int, Tensor]) -> Tensor:
    places = (site.removeprefix("tc.").removesuffix("]").split("[") for site in found.sites)
    return torch.stack(
        [effects[int(layer)][at, int(unit)] for (layer, unit), at in zip(places, found.positions, strict=True)]
    )


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("family", KINDS)
def test_the_effects_of_features_are_those_of_autograd_on_the_plain_model(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    point, read, hook = KINDS[family]
    found, layers = graphed(build(family, layers=LAYERS).to(dtype), tmp_path, point, hook)
    model = build(family, layers=LAYERS).to(dtype).float()
    plain = HeldModel(model, layers, LINE, read=read, written=AFTER[hook])
    edges, width = to_tensor(found.edges), len(found.sites)
    expected = row(found, plain.effects(plain.logits[17] - plain.logits[42]))
    assert (edges[0, :width] - expected).abs().max() < ROUNDING[dtype] * expected.abs().max()
    for number in range(0, width, 41):
        layer, unit = (int(part) for part in found.sites[number].removeprefix("tc.").removesuffix("]").split("["))
        expected = row(found, plain.effects(plain.before[layer][found.positions[number], unit]))
        assert (edges[1 + number, :width] - expected).abs().max() <= ROUNDING[dtype] * edges[:, :width].abs().max()
    reached, summed = to_tensor(found.reached), to_tensor(found.summed)
    assert (reached - summed).abs().max() < ROUNDING[dtype] * reached.abs().max()
