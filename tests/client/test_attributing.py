"""`dj.attribute` against an engine in this process: what the grid tells, pairs, files and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.widgets.grid import grid_view

CLEAN, CORRUPTED = (9, 8, 7, 21, 22), (9, 8, 7, 31, 22)
ASKED = {"site": "z", "over": ("layer", "head"), "metric": "logit(17) - logit(42)"}


def attributed(engine: RemoteEngine, **fields: Any) -> dj.Grid:
    return dj.attribute(engine, **{"clean": CLEAN, "corrupted": CORRUPTED, **ASKED, **fields})


def test_scores_have_the_shape_and_the_sign_of_the_changes_of_a_sweep(engine: RemoteEngine) -> None:
    scores = attributed(engine)
    grid = dj.sweep(engine, clean=CLEAN, corrupted=CORRUPTED, mode="exact", **ASKED)
    changes = grid.values - grid.corrupted
    assert scores.values.shape == changes.shape == (3, 4)
    assert np.corrcoef(scores.values.reshape(-1), changes.reshape(-1))[0, 1] > 0.5
    assert (scores.corrupted, scores.clean) == pytest.approx((grid.corrupted, grid.clean), abs=1e-5)
    assert (scores.steps, scores.unedited, grid.steps) == (1, 0.0, None)


def test_a_grid_of_scores_has_all_that_a_grid_has(engine: RemoteEngine, tmp_path: Path) -> None:
    scores = attributed(engine, steps=3)
    again = dj.Grid.read(scores.save(tmp_path / "scores.grid.djinn"))
    assert (repr(again), again.recipe, again.columns()) == (repr(scores), scores.recipe, scores.columns())
    assert (again.steps, again.recipe["steps"]) == (3, 3)
    assert repr(scores).endswith("gradient x patch from the clean line, 3 steps at z, estimated")
    view = grid_view(scores)
    assert "orange where the metric would rise" in view.html
    assert "12 estimated, to first order, and none computed" in view.plain


def test_pairs_have_statistics_of_their_scores(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22), (9, 8, 7, 51, 22)]
    scores = attributed(engine, clean=[CLEAN] * 3, corrupted=lines)
    assert scores.over == ("pair", "layer", "head")
    assert np.allclose(scores.statistics().change, scores.values.mean(0))
    assert np.array_equal(scores.values[0], attributed(engine).values)
    several = attributed(engine, metric=["logit(17)", "logit(42)"])
    assert several.unedited.shape == (2,)
    assert np.allclose(several.values[0] - several.values[1], scores.values[0], atol=1e-6)


@pytest.mark.parametrize("fields", [{"corrupted": None}, {"steps": 0}, {"metric": "rank(3)"}, {"over": ("coef",)}])
def test_what_cannot_be_attributed_is_refused(engine: RemoteEngine, fields: dict[str, Any]) -> None:
    with pytest.raises(DjinnError):
        attributed(engine, **fields)
