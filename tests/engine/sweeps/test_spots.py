"""Cells of several spots, neurons and starred sites are those of plain hooks at all their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.sweep.request import Mean
from djinn_jupyter.wire.edits import Scale, Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import CORRUPTED, GRID, LAYERS, swept, values

LENGTH = len(CORRUPTED)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def test_pairs_of_heads_and_windows_inside_layers_have_in_one_pass_what_they_have_alone(desk: Desk) -> None:
    for asked in (
        {"site": "z.1", "over": ("head",), "in_pairs": True},
        {"site": "z", "over": ("layer", "head"), "in_pairs": True, "edit": Mean()},
        {"site": "mlp_out", "over": GRID, "windows": (("layer", 2),)},
    ):
        alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
        assert together.mode == "fast"
        assert (values(alone) - values(together)).abs().max() < 2e-5
        assert values(together).std() > 1e-4


def test_neurons_and_starred_sites_have_the_values_of_the_sites_they_name(desk: Desk) -> None:
    asked: dict[str, Any] = {"edit": Zero(), "clean": None, "mode": "exact"}
    neurons = swept(desk, site="mlp_post.1[*]", over=("neuron",), **asked)
    width = len(neurons.places[0])
    for neuron in (0, 5, width - 1):
        one = swept(desk, site=f"mlp_post.1[{neuron}]", over=("position",), windows=(("position", LENGTH),), **asked)
        assert float(values(neurons)[neuron]) == float(values(one)[0])
    heads = swept(desk, site="z.*[*]", over=("layer", "head"), **asked)
    assert torch.equal(values(heads), values(swept(desk, site="z", over=("layer", "head"), **asked)))
    points = swept(desk, site="*.1", over=("point", "position"), **asked)
    assert {"resid_pre", "z", "mlp_out", "resid_post"} <= set(points.places[0])
    for point in ("z", "mlp_post", "resid_post"):
        alone = swept(desk, site=f"{point}.1", over=("position",), **asked)
        assert torch.equal(values(points)[points.places[0].index(point)], values(alone))


def test_a_fast_sweep_of_points_has_what_each_has_alone(desk: Desk) -> None:
    asked = {"site": "*", "over": ("layer", "point"), "edit": Scale(factor=0.5)}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"windows": (("head", 2),), "site": "z", "over": ("layer", "head")}, "A window is of layers or positions"),
        ({"windows": (("position", 2),), "over": ("layer",)}, "position is none of them"),
        ({"in_pairs": True, "windows": (("layer", 2),)}, "leave one of them out"),
        ({"in_pairs": True, "site": "*.1", "over": ("point",)}, "leave coef and point out"),
        ({"site": "z.1[*]", "over": ("position",)}, r"\[\*\] is an axis of the sweep: add head"),
        ({"site": "*.1", "over": ("position",)}, "add point to the axes"),
        ({"site": "z.1", "over": ("point",)}, r"write \* for it"),
        ({"site": "*.1[3]", "over": ("point",)}, "leave the selector"),
        ({"site": "z", "over": ("layer", "neuron")}, "features without heads, as mlp_post has; z not"),
        ({"site": "mlp_post.1[2]", "over": ("neuron",)}, "features without heads"),
        ({"site": "z.1", "over": ("head", "neuron")}, "sweep over one of them"),
    ],
)
def test_what_cannot_be_swept_together_is_refused_in_a_sentence(desk: Desk, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DjinnError, match=said):
        swept(desk, **fields)
