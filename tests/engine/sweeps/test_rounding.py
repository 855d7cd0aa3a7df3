"""How far a fast sweep may be from its recheck follows from its dtype's rounding and its layers."""

from __future__ import annotations

import math

import pytest
import torch

from djinn_jupyter.engine.passes.shared_cache import rounding_of
from djinn_jupyter.methods.sweep.engine.checked_sweep import Found
from tests.engine.desk import desk_of
from tests.engine.sweeps.test_sweeps import A, B, swept, values


@pytest.mark.parametrize(
    ("dtype", "layers", "share"),
    [
        (torch.float32, 12, 1e-4),
        (torch.bfloat16, 2, 4 * 2**-7),
        (torch.bfloat16, 12, 0.0383),
        (torch.bfloat16, 80, 5e-2),
        (torch.float16, 12, 0.00478),
    ],
)
def test_the_share_is_that_of_independent_roundings(dtype: torch.dtype, layers: int, share: float) -> None:
    assert rounding_of(dtype, layers) == pytest.approx(share, rel=1e-2)


def test_a_difference_of_large_logits_is_judged_by_their_size() -> None:
    desk = desk_of("llama", layers=2)
    reply = swept(desk, metrics=(f"100 * logit({A}) - 100 * logit({B})", f"logit({A})", f"prob({A})"))
    sizes = [max(1.0, *map(abs, values(swept(desk, metrics=(text,))).flatten().tolist())) for text in ("logit(17)",)]
    tolerances = [measured.tolerance for measured in reply.measured]
    assert tolerances[0] > 1e-4
    assert tolerances[1] == pytest.approx(1e-4 * sizes[0], rel=1e-3)
    assert tolerances[2] == 1e-4
    desk.close_all()


def test_an_infinite_logit_does_not_let_every_difference_pass() -> None:
    found = Found(metrics=("a",), rounding=1e-3, sizes=(math.inf,), unchanged=(2.0,), values=[(math.nan,), (4.5,)])
    found.recheck(1, (4.0,), computed=True)
    assert found.tolerance(0) == 4e-3
    assert found.distrusted()


def test_one_wrong_cell_does_not_let_the_others_pass() -> None:
    found = Found(metrics=("a",), rounding=1e-3, sizes=(2.0,), unchanged=(2.0,), values=[(1e9,), (4.5,)])
    found.recheck(1, (4.0,), computed=True)
    assert found.tolerance(0) == 4e-3
    assert found.distrusted()
