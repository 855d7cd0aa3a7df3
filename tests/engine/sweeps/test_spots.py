"""Cells of several spots, neurons and starred sites are those of plain hooks at all their places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.sweep.request import Mean
from djinn_jupyter.wire.edits import Scale, Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.plain import plain_of
from tests.engine.sweeps import plain_sweep
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, GRID, LAYERS, A, B, swept, values

LENGTH = len(CORRUPTED)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def by_hooks(family: str, spots: list[tuple[int, int]], put: Any, dtype: torch.dtype = torch.float32) -> float:
    """The metric where `put(layer, hidden, position)` changes the residual after each of these layers."""
    model = plain_of(family, dtype, layers=LAYERS)
    with ExitStack() as stack:
        for layer, position in spots:
            stack.callback(plain_sweep.layers_of(model)[layer].register_forward_hook(put(layer, position)).remove)
        return plain_sweep.metric_of(model, CORRUPTED, A, B)


def patch(kept: list[Tensor]) -> Any:
    return lambda layer, position: plain_sweep.putting(kept[layer], position)


def halve(layer: int, position: int) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[:, position] *= 0.5
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return hook


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", torch.float32), ("gpt2", torch.float32), ("llama", torch.bfloat16), ("mamba2", torch.float32)],
)
def test_windows_are_those_of_hooks_at_all_their_layers_and_positions(family: str, dtype: torch.dtype) -> None:
    desk = desk_of(family, dtype, layers=LAYERS)
    kept = plain_sweep.residuals(plain_of(family, dtype, layers=LAYERS), CLEAN)
    windows = (("layer", 3), ("position", 2))
    for edit, put in ((None, patch(kept)), (Scale(factor=0.5), halve)):
        exact = values(swept(desk, windows=windows, edit=edit, mode="exact"))
        for layer, position in ((0, 3), (0, 9), (1, 6), (LAYERS - 2, 10), (LAYERS - 1, LENGTH - 1)):
            places = range(layer, min(layer + 3, LAYERS)), range(position, min(position + 2, LENGTH))
            spots = [(at, row) for at in places[0] for row in places[1]]
            assert float(exact[layer, position]) == by_hooks(family, spots, put, dtype)
        if family == "llama" and dtype == torch.float32:
            fast = swept(desk, windows=windows, edit=edit)
            assert fast.mode == "fast"
            assert (values(fast) - exact).abs().max() < 2e-5
    desk.close_all()


def test_pairs_of_cells_are_those_of_two_hooks_and_the_diagonal_is_one(desk: Desk) -> None:
    kept = plain_sweep.residuals(plain_of("llama", torch.float32, layers=LAYERS), CLEAN)
    asked = {"over": GRID, "in_pairs": True}
    fast = swept(desk, **asked)
    cells = values(fast).reshape(LAYERS * LENGTH, -1)
    assert torch.equal(cells, cells.T)
    assert fast.over == (*GRID, *GRID)
    assert fast.mode == "fast"
    for a, b in (((0, 7), (2, 5)), ((1, 9), (3, 11)), ((2, 6), (2, 8)), ((0, 2), (2, 7)), ((3, 11), (3, 11))):
        alone = by_hooks("llama", sorted({a, b}), patch(kept))
        assert float(values(fast)[(*a, *b)]) == pytest.approx(alone, abs=2e-5)
    single = values(swept(desk)).reshape(-1)
    assert (cells.diagonal() - single).abs().max() < 2e-5


@pytest.mark.parametrize("edit", [None, Scale(factor=0.5)], ids=["patch", "scale"])
def test_each_exact_pair_of_cells_has_the_bits_of_two_hooks(desk: Desk, edit: Any) -> None:
    kept = plain_sweep.residuals(plain_of("llama", torch.float32, layers=LAYERS), CLEAN)
    put, places = patch(kept) if edit is None else halve, [(layer, row) for layer in range(LAYERS) for row in (6, 9)]
    exact = values(swept(desk, positions=(6, 9), in_pairs=True, edit=edit, mode="exact")).reshape(len(places), -1)
    for a, one in enumerate(places):
        for b, other in enumerate(places):
            assert float(exact[a, b]) == by_hooks("llama", sorted({one, other}), put)


def test_exact_pairs_of_heads_have_the_bits_of_both_zeroed_by_hooks(desk: Desk) -> None:
    exact = values(swept(desk, site="z", over=("layer", "head"), in_pairs=True, edit=Zero(), clean=None, mode="exact"))
    model = plain_of("llama", torch.float32, layers=LAYERS)
    for pair in (((0, 1), (2, 3)), ((1, 0), (1, 2)), ((3, 3), (3, 3))):
        with ExitStack() as stack:
            for layer, head in pair:
                entry = plain_sweep.layers_of(model)[layer].self_attn.o_proj
                stack.callback(entry.register_forward_pre_hook(without(head)).remove)
            assert float(exact[(*pair[0], *pair[1])]) == plain_sweep.metric_of(model, CORRUPTED, A, B)


def without(head: int) -> Any:
    def hook(module: Any, args: Any) -> Any:
        heads = args[0].clone().unflatten(-1, (4, -1))
        heads[..., head, :] = 0
        return (heads.flatten(-2),)

    return hook


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
