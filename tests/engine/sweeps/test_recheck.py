"""Faults planted in the pass that cells share are found by the recheck, and the sweep then computes each cell alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import shared_cache, wavefront
from djinn_jupyter.engine.passes.wavefront import CallSize
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_alignment import LONGER
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values


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
