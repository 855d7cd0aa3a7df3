"""What a sweep can put at a cell: means, other positions' values, coefficients, and lines in noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.methods.sweep.engine.edits import elsewhere, noised
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample
from djinn_jupyter.wire.edits import Add, Scale, Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.plain import plain_of
from tests.engine.sweeps import plain_sweep
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, LAYERS, A, B, swept, values

NOISE = Noise(positions=(2, 3, -4), scale=2.0)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def patched_by_hand(kept: Tensor, layer: int) -> Tensor:
    """Return the metric with kept [S, D] behind a layer of the corrupted line, one position at a time."""
    model = plain_of("llama", torch.float32, layers=LAYERS)
    found = []
    for position in range(len(CORRUPTED)):
        hook = plain_sweep.layers_of(model)[layer].register_forward_hook(plain_sweep.putting(kept[None], position))
        found.append(plain_sweep.metric_of(model, CORRUPTED, A, B))
        hook.remove()
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("source", [CLEAN, None])
def test_mean_is_that_of_the_positions_and_resample_another_position(desk: Desk, source: Any) -> None:
    model = plain_of("llama", torch.float32, layers=LAYERS)
    kept = plain_sweep.residuals(model, CORRUPTED if source is None else source)[1][0]
    asked = {"site": "resid_post.1", "over": ("position",), "clean": source, "seed": 5, "mode": "exact"}
    mean = kept.mean(0, keepdim=True).expand_as(kept)
    assert torch.equal(values(swept(desk, edit=Mean(), **asked)), patched_by_hand(mean, 1))
    other = elsewhere(len(CORRUPTED), seed=5)
    assert torch.equal(values(swept(desk, edit=Resample(), **asked)), patched_by_hand(kept[other], 1))


def test_an_edit_with_a_vector_is_swept_and_another_vector_is_another_sweep(desk: Desk) -> None:
    kept = plain_sweep.residuals(plain_of("llama", torch.float32, layers=LAYERS), CORRUPTED)[1][0]
    asked: dict[str, Any] = {"site": "resid_post.1", "over": ("position",), "clean": None, "mode": "exact"}
    vectors = [torch.full(kept.shape[1:], size) for size in (0.5, 2.0)]
    replies = [swept(desk, edit=Add(vector=to_array(vector)), **asked) for vector in vectors]
    for vector, reply in zip(vectors, replies, strict=True):
        assert torch.equal(values(reply), patched_by_hand(kept + vector, 1))
    assert replies[0].recipe != replies[1].recipe


def test_another_position_is_never_the_same_and_every_one_is_drawn_once() -> None:
    drawn = elsewhere(9, seed=1)
    assert sorted(drawn) == list(range(9))
    assert all(other != position for position, other in enumerate(drawn))
    assert drawn == elsewhere(9, seed=1) != elsewhere(9, seed=2)


@pytest.mark.parametrize("edit", [Mean(), Resample()])
def test_such_edits_of_heads_have_in_one_pass_what_they_have_alone(desk: Desk, edit: Any) -> None:
    asked = {"site": "z.*", "over": ("layer", "head"), "edit": edit}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5
    assert values(together).std() > 1e-3


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_over_coefficients_the_edit_has_each_of_them(desk: Desk, mode: Any) -> None:
    coefs = (0.0, 1.0, 2.5)
    asked = {"site": "mlp_out", "clean": None, "mode": mode}
    reply = swept(desk, over=("layer", "coef"), coefs=coefs, edit=Scale(factor=9.0), **asked)
    assert reply.places[1] == coefs
    for at, coef in enumerate(coefs):
        one = values(swept(desk, over=("layer",), edit=Scale(factor=coef), **asked))
        assert (values(reply)[:, at] - one).abs().max() <= (0 if mode == "exact" else 2e-5)
    assert (values(reply)[:, 1] == reply.measured[0].corrupted).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba2"])
def test_a_line_in_noise_is_patched_back_as_by_plain_hooks(family: str) -> None:
    desk = desk_of(family, layers=LAYERS)
    model = plain_of(family, torch.float32, layers=LAYERS)
    kept = plain_sweep.residuals(model, CLEAN)
    spoil = plain_sweep.layers_of(model)[0].register_forward_pre_hook(_spoiled)
    expected = torch.tensor(list(plain_sweep.patched(model, None, CLEAN, A, B, kept).values()), dtype=torch.float64)
    unchanged = plain_sweep.metric_of(model, CLEAN, A, B)
    spoil.remove()
    reply = swept(desk, corrupted=CLEAN, clean=CLEAN, noise=NOISE, seed=7, mode="exact")
    assert torch.equal(values(reply).reshape(-1), expected)
    assert (
        reply.measured[0].corrupted == unchanged != reply.measured[0].clean == plain_sweep.metric_of(model, CLEAN, A, B)
    )
    together = swept(desk, corrupted=CLEAN, clean=CLEAN, noise=NOISE, seed=7)
    assert (values(together).reshape(-1) - expected).abs().max() < 2e-5
    assert reply.edit == "patch from the clean line, noise 2 at 2, 3, -4"
    desk.close_all()


def _spoiled(layer: Any, args: tuple[Any, ...]) -> Any:
    return (noised(args[0], NOISE, seed=7), *args[1:])


def test_a_line_in_noise_is_edited_inside_its_layers(desk: Desk) -> None:
    asked = {"site": "mlp_out", "corrupted": CLEAN, "clean": CLEAN, "noise": NOISE}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5
    assert values(swept(desk, seed=1, **asked)).sub(values(together)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"noise": NOISE, "clean": None, "edit": Zero()}, "needs the clean line"),
        ({"noise": Noise(positions=(12,))}, "Position 12 is not in the line, which has 12 tokens"),
        ({"over": ("layer", "coef"), "edit": Scale(factor=1.0)}, "needs the coefficients"),
        ({"coefs": (1.0,), "edit": Scale(factor=1.0)}, "no other sweep does"),
        ({"over": ("layer", "coef"), "coefs": (1.0,), "edit": Zero()}, "zero has none"),
        ({"over": ("layer", "coef"), "coefs": (1.0,)}, "patching has none"),
        ({"edit": Mean(), "clean": CLEAN[:-1]}, "11 tokens and the corrupted one 12"),
        ({"site": "resid_post.*", "over": ("position",)}, "name one, as in resid_post.4"),
    ],
)
def test_what_cannot_be_put_there_is_refused_in_a_sentence(desk: Desk, fields: dict[str, Any], said: str) -> None:
    error: type[DjinnError] = UsageError
    with pytest.raises(error, match=said):
        swept(desk, **fields)
