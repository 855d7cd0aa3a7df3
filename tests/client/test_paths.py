"""`dj.path` against an engine in this process: how paths are written, pairs, what the grid tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.sweep.card import grid_view
from djinn_jupyter.widgets.spelling import figure

CLEAN, CORRUPTED = (9, 8, 7, 21, 22), (9, 8, 7, 31, 22)
METRIC = "logit(17) - logit(42)"


def patched(engine: RemoteEngine, path: str, **fields: Any) -> dj.Grid:
    return dj.path(engine, path, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **fields})


@pytest.mark.parametrize(
    ("path", "over", "shape"),
    [
        ("z -> q.2[0]", ("layer", "head"), (3, 4)),
        ("z.*[*] -> q.2[0], k.2[1]", ("layer", "head"), (3, 4)),
        ("z.1 → q.2[0,1]", ("head",), (4,)),
        ("z.*[1] -> logits", ("layer",), (3,)),
        ("mlp_out -> mlp_in.2 q.2", ("layer",), (3,)),
        ("z.1[2]->q.2[0]", (), ()),
        ("blocks.1.attn.hook_z -> blocks.2.mlp.hook_in", (), ()),
    ],
)
def test_what_a_sender_leaves_open_is_swept(
    engine: RemoteEngine, path: str, over: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    grid = patched(engine, path, mode="exact")
    assert (grid.over, grid.values.shape) == (over, shape)


def test_the_grid_compares_with_the_clean_line_and_has_all_that_a_grid_has(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    grid = patched(engine, "z -> q.2[0]", seed=7)
    assert grid.unedited == grid.clean != grid.corrupted
    assert (grid.values[2] == grid.clean).all()
    assert not (grid.values[:2] == grid.clean).all()
    assert (grid.recipe["receivers"], grid.recipe["into"], grid.recipe["seed"]) == (("q.2[0]",), "clean", 7)
    assert "patch from the corrupted line at z, by paths to q.2[0] alone" in repr(grid)
    again = dj.Grid.read(grid.save(tmp_path / "paths.grid.djinn"))
    assert (repr(again), again.recipe, again.columns()) == (repr(grid), grid.recipe, grid.columns())
    assert "the clean line's, blue below" in grid_view(grid).html


def test_one_path_is_one_number_and_that_of_the_sweep(engine: RemoteEngine) -> None:
    one, all_of_them = (patched(engine, path, mode="exact") for path in ("z.1[2] -> q.2[0]", "z -> q.2[0]"))
    assert float(one.values) == all_of_them.values[1, 2]
    assert one.columns() == {"value": [float(one.values)]}
    assert repr(one).startswith(f"Grid of {METRIC}: patch")
    assert figure(float(one.values)) in grid_view(one).plain
    assert f"edited: {figure(float(one.values))}" in grid_view(one).plain


def test_pairs_have_statistics_of_their_changes_from_the_clean_lines(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22), (9, 8, 7, 51, 22)]
    grid = patched(engine, "z -> q.2[0]", clean=[CLEAN] * 3, corrupted=lines)
    assert grid.over == ("pair", "layer", "head")
    assert np.allclose(grid.statistics().change, (grid.values - grid.clean[:, None, None]).mean(0))
    assert "largest mean changes" in grid_view(grid).plain


def test_an_edit_takes_the_place_of_the_other_line(engine: RemoteEngine) -> None:
    grid = patched(engine, "z -> q.2[0]", corrupted=None, edit=dj.zero())
    assert grid.edit == "zero"
    assert grid.unedited == grid.clean


def test_a_path_goes_on_being_told_while_it_runs(engine: RemoteEngine) -> None:
    told: list[tuple[float, int, int]] = []
    grid = patched(
        engine, "z -> q.2[0]", mode="exact", on_progress=lambda so_far, *done: told.append((so_far.unedited, *done))
    )
    assert told[-1] == (grid.clean, 12, 12)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("z.1[2]", {}, "A path is written SENDER -> RECEIVERS"),
        ("z.1 z.2 -> q.2", {}, "A path is written SENDER -> RECEIVERS"),
        ("-> q.2", {}, "A path is written SENDER -> RECEIVERS"),
        ("z.2[1] -> q.1[0]", {}, "No path leads from z.2 to q.1: a receiver lies after its sender"),
        ("z -> q.7[0]", {}, "q.7"),
        ("y -> q.2[0]", {}, "'y'"),
        ("z -> q.2[0]", {"corrupted": (1, 2)}, "The corrupted line has 2 tokens and the clean one 5"),
        ("z -> q.2[0]", {"corrupted": None}, "A path needs the line whose values go along it"),
        ("z -> q.2[0]", {"clean": [CLEAN] * 2}, "Pairs are two lists of equally many lines"),
        ("z -> q.2[0]", {"metric": "norm"}, "A metric reads logits"),
    ],
)
def test_what_is_no_path_is_one_sentence(engine: RemoteEngine, path: str, fields: Any, said: str) -> None:
    with pytest.raises(DjinnError) as raised:
        patched(engine, path, **fields)
    assert said in str(raised.value)


def test_pairs_are_the_same_given_one_by_one_or_as_two_lists(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22)]
    apart = patched(engine, "z -> q.2[0]", clean=[CLEAN] * 2, corrupted=lines)
    pairs = [(CLEAN, line) for line in lines]
    assert (dj.path(engine, "z -> q.2[0]", pairs=pairs, metric=METRIC).values == apart.values).all()
    with pytest.raises(DjinnError, match="Give the lines once"):
        dj.path(engine, "z -> q.2[0]", pairs=pairs, clean=CLEAN, metric=METRIC)
    with pytest.raises(DjinnError, match="needs the line that it lies in"):
        dj.path(engine, "z -> q.2[0]", corrupted=CORRUPTED, metric=METRIC)
