"""Faults planted in the pass that cells share are found by the recheck, and the sweep then computes each cell alone.
How far a fast sweep may be from it follows from its dtype's rounding and its layers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import shared_cache, wavefront
from djinn_jupyter.engine.passes.shared_cache import difference, equal_but_for_rounding, rounding_of
from djinn_jupyter.engine.passes.wavefront import CallSize
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.methods.sweep.engine.checked_sweep import Found
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_spots import LONGER
from tests.engine.sweeps.test_sweeps import LAYERS, A, B, swept, values


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


KINDS: dict[str, dict[str, Any]] = {
    "cells": {},
    "pairs of cells": {"in_pairs": True, "positions": (7, 10)},
    "neurons": {"site": "mlp_post.1[*]", "over": ("neuron",), "edit": Zero(), "clean": None, "positions": (7,)},
    "aligned": {"clean": LONGER, "align": ((5, 4), (7, 7), (-1, -1))},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_reads_anothers_keys_is_found_by_the_recheck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    expected = values(swept(desk, mode="exact", **KINDS[kind]))
    swept(desk)  # the family is known to share passes: what breaks from here on the first test cannot see
    joined = shared_cache.SharedLayer._joined

    def crossed(self: Any, own: Any) -> Any:
        keys, kept = joined(self, own)
        return keys.roll(1, 0), kept

    monkeypatch.setattr(shared_cache.SharedLayer, "_joined", crossed)
    monkeypatch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would run lines singly
    falls_back(swept(desk, **KINDS[kind]), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_values_written_to_other_cells_are_found_by_the_recheck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    expected = values(swept(desk, mode="exact", **KINDS[kind]))
    values_of = sweeps.values_of

    def shifted(*args: Any) -> Any:
        found = yield from values_of(*args)
        numbers = list(found)
        return dict(zip(numbers, [found[n] for n in numbers[1:] + numbers[:1]], strict=True))

    monkeypatch.setattr(sweeps, "values_of", shifted)
    falls_back(swept(desk, **KINDS[kind]), expected)


def test_a_cell_that_is_left_out_though_it_changes_something_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = values(swept(desk, mode="exact"))
    monkeypatch.setattr(edits, "same_bits", lambda part, before: True)
    reply = swept(desk, seed=1)  # draws one of the cells that do change something
    falls_back(reply, expected)
    assert "was left out, and the edit changes something there" in reply.notes[-1]


@pytest.mark.parametrize("asked", [{"windows": (("layer", 3),)}, KINDS["pairs of cells"]], ids=["windows", "pairs"])
def test_layers_further_on_that_are_not_edited_are_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    expected = values(swept(desk, mode="exact", **asked))
    monkeypatch.setattr(wavefront._Group, "change", lambda *change: None)
    falls_back(swept(desk, **asked), expected)


def test_a_difference_too_small_to_see_in_a_grid_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = values(swept(desk, mode="exact"))
    values_of, apart = sweeps.values_of, 5e-4 * max(1.0, float(expected.abs().max()))

    def near(*args: Any) -> Any:
        found = yield from values_of(*args)
        return {number: (value + apart,) for number, (value,) in found.items()}

    monkeypatch.setattr(sweeps, "values_of", near)
    falls_back(swept(desk), expected)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_found_by_the_recheck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    expected = values(swept(desk, mode="exact"))
    values_of = sweeps.values_of

    def overflowing(*args: Any) -> Any:
        found = yield from values_of(*args)
        spoiled = random.Random(0).sample(sorted(found), sweeps.RECHECKED)[-1]  # one of those that are rechecked
        return {**found, spoiled: (wrong,)}

    monkeypatch.setattr(sweeps, "values_of", overflowing)
    falls_back(swept(desk), expected)


def falls_back(reply: Any, expected: Tensor) -> None:
    """Fail unless the sweep gives every cell's exact value and says why."""
    assert (reply.mode, reply.measured[0].largest_difference, reply.rechecked) == ("exact", None, ())
    assert "every cell was computed alone" in reply.notes[-1]
    assert torch.equal(values(reply), expected)


def test_of_each_later_pair_another_cell_is_computed_again_and_finds_the_same_faults(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = values(swept(desk, mode="exact"))
    several = [swept(desk, pair=number).rechecked for number in range(4)]
    assert [len(one) for one in several] == [sweeps.RECHECKED + sweeps.LEFT_OUT, 1, 1, 1]
    assert len(set(several[1:])) > 1
    values_of = sweeps.values_of

    def apart(*args: Any) -> Any:
        found = yield from values_of(*args)
        return {number: (value + 1.0,) for number, (value,) in found.items()}

    monkeypatch.setattr(sweeps, "values_of", apart)
    falls_back(swept(desk, pair=1), expected)


NAN, INF = math.nan, math.inf


def test_values_that_are_no_numbers_are_compared_as_they_stand() -> None:
    one, other = torch.tensor([1.0, NAN, INF, NAN, -INF, INF]), torch.tensor([1.5, NAN, INF, 2.0, INF, NAN])
    assert difference(one, other).tolist() == [-0.5, 0.0, 0.0, INF, INF, INF]


def test_rows_of_nan_agree_with_the_same_rows_alone_and_with_no_others() -> None:
    row = torch.tensor([[1.0, 2.0, NAN, -INF]])
    assert equal_but_for_rounding(row, row + 1e-6, torch.float32)
    assert not equal_but_for_rounding(row, row + 0.1, torch.float32)
    assert not equal_but_for_rounding(row, row.nan_to_num(nan=0.0), torch.float32)
    assert not equal_but_for_rounding(row.nan_to_num(nan=0.0), row, torch.float32)
    assert not equal_but_for_rounding(row, -row, torch.float32)


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
