"""What a sweep can put at a cell: means, other positions' values, coefficients, and lines in noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.methods.sweep.engine.edits import elsewhere
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample
from djinn_jupyter.wire.edits import Add, Scale, Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import CLEAN, LAYERS, swept, values

NOISE = Noise(positions=(2, 3, -4), scale=2.0)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def test_another_vector_is_another_sweep(desk: Desk) -> None:
    asked: dict[str, Any] = {"site": "resid_post.1", "over": ("position",), "clean": None, "mode": "exact"}
    edits = [Add(vector=to_array(torch.full((32,), size))) for size in (0.5, 2.0)]
    assert len({swept(desk, edit=edit, **asked).recipe for edit in edits}) == 2


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
