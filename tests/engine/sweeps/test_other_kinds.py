"""Sweeps against plain hooks on the plain model, in kinds of families beside those of `tests/engine/methods`."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from tests.engine.desk import build_desk
from tests.engine.sweeps import plain_sweep
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, A, B, swept, values
from tests.families import build

LAYERS = 2
POSITIONS = (3, 7, 11)
KINDS = (
    "deepseek_v3",  # keys and values of different widths, experts
    "longcat_flash",  # two caches a layer
    "mamba2",  # states
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", KINDS)
def test_a_sweep_is_that_of_plain_hooks(family: str, dtype: torch.dtype) -> None:
    model = build(family, layers=LAYERS).to(dtype)
    plain = plain_sweep.patched(model, CLEAN, CORRUPTED, A, B, positions=POSITIONS)
    expected = torch.tensor(list(plain.values()), dtype=torch.float64).reshape(-1, len(POSITIONS))
    desk = build_desk(model)
    exact, fast = (swept(desk, positions=POSITIONS, mode=mode) for mode in ("exact", "fast"))
    assert torch.equal(values(exact), expected)
    most = 2e-5 if dtype == torch.float32 else fast.measured[0].tolerance
    assert (values(fast) - expected).abs().max() <= most
    assert (fast.mode == "exact") == (family == "mamba2")
    if family == "mamba2":
        assert fast.measured[0].largest_difference is None
        assert "cannot share a pass: its layers keep recurrent states." in fast.notes[0]
    else:
        assert (fast.notes, len(fast.rechecked)) == ((), sweeps.RECHECKED + sweeps.LEFT_OUT)
        assert 0 <= fast.measured[0].largest_difference <= most
    desk.close_all()
