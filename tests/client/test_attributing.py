"""Attributions and paths: grids beside those of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, SlabFull, SweepEnded, UsageError
from djinn_jupyter.methods.sweep.api import sweeping
from djinn_jupyter.methods.sweep.api.grid import noted
from djinn_jupyter.methods.sweep.api.sweeping import swept_again
from djinn_jupyter.methods.sweep.card import grid_view
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.widgets.spelling import figure

CLEAN, CORRUPTED = (9, 8, 7, 21, 22), (9, 8, 7, 31, 22)
ASKED = {"site": "z", "over": ("layer", "head"), "metric": "logit(17) - logit(42)"}


def attributed(engine: RemoteEngine, **fields: Any) -> dj.Grid:
    return dj.attribute(engine, **{"clean": CLEAN, "corrupted": CORRUPTED, **ASKED, **fields})


def test_scores_have_the_shape_and_the_sign_of_the_changes_of_a_sweep(engine: RemoteEngine, tmp_path: Path) -> None:
    scores = attributed(engine)
    grid = dj.sweep(engine, clean=CLEAN, corrupted=CORRUPTED, mode="exact", **ASKED)
    changes = grid.values - grid.corrupted
    assert scores.values.shape == changes.shape == (3, 4)
    assert np.corrcoef(scores.values.reshape(-1), changes.reshape(-1))[0, 1] > 0.5
    assert (scores.corrupted, scores.clean) == pytest.approx((grid.corrupted, grid.clean), abs=1e-5)
    assert (scores.steps, scores.unedited, grid.steps) == (1, 0.0, None)
    scores = attributed(engine, steps=3)
    again = dj.Grid.read(scores.save(tmp_path / "scores.grid.djinn"))
    assert (repr(again), again.recipe, again.columns()) == (repr(scores), scores.recipe, scores.columns())
    assert (again.steps, again.recipe["steps"]) == (3, 3)
    assert repr(scores).endswith("gradient x patch from the clean line, 3 steps at z, estimated")
    view = grid_view(scores)
    assert "orange where the metric would rise" in view.html
    assert "12 estimated, to first order, and none computed" in view.plain
    lines = [CORRUPTED, (9, 8, 7, 41, 22), (9, 8, 7, 51, 22)]
    scores = attributed(engine, clean=[CLEAN] * 3, corrupted=lines)
    assert scores.over == ("pair", "layer", "head")
    assert np.allclose(scores.statistics().change, scores.values.mean(0))
    assert np.array_equal(scores.values[0], attributed(engine).values)
    several = attributed(engine, metric=["logit(17)", "logit(42)"])
    assert several.unedited.shape == (2,)
    assert np.allclose(several.values[0] - several.values[1], scores.values[0], atol=1e-6)


@pytest.fixture
def sent(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """The sweeps that were asked for."""
    found: list[Sweep] = []
    run = sweeping._Sweep._run

    def noting(self: Any, session: str, request: Sweep) -> Any:
        found.append(request)
        return run(self, session, request)

    monkeypatch.setattr(sweeping._Sweep, "_run", noting)
    return found


def test_the_strongest_cells_are_computed_exactly_in_the_same_breath(
    engine: RemoteEngine, sent: list[Sweep], tmp_path: Path
) -> None:
    scores = attributed(engine, top=5)
    assert [(one.estimate is None, one.mode, len(one.chosen)) for one in sent] == [
        (False, "fast", 0),
        (True, "exact", 5),
    ]
    exact = dj.sweep(engine, clean=CLEAN, corrupted=CORRUPTED, mode="exact", **ASKED)
    changes = exact.values - exact.corrupted
    strongest = np.argsort(-np.abs(scores.values).reshape(-1))[:5]
    assert np.array_equal(scores.confirmed.reshape(-1)[strongest], changes.reshape(-1)[strongest])
    assert np.isnan(scores.confirmed).sum() == 12 - 5
    at = ~np.isnan(scores.confirmed)
    assert scores.correlation == np.corrcoef(scores.values[at], changes[at])[0, 1]
    assert np.array_equal(scores.values, attributed(engine).values)
    assert (attributed(engine).confirmed, attributed(engine).correlation) == (None, None)
    assert engine.sessions() == ()
    scores = attributed(engine, top=5)
    again = dj.Grid.read(scores.save(tmp_path / "scores.grid.djinn"))
    for one in (scores, again):
        table = one.columns()
        assert np.array_equal(table["confirmed"], scores.confirmed.reshape(-1), equal_nan=True)
        view = grid_view(one)
        assert "5 of them computed exactly" in view.plain
        assert f"correlation {figure(scores.correlation, 2)} over 5 changes" in view.plain
        row, column = np.unravel_index(np.argmax(np.abs(scores.values)), scores.values.shape)
        both = f"layer {row}, head {column}", *map(figure, (scores.values[row, column], scores.confirmed[row, column]))
        assert any(line.split() == " ".join(both).split() for line in view.plain.splitlines())
        assert all(said in view.html for said in both)
    assert repr(scores).endswith("estimated, 5 cells computed exactly too")
    assert "confirmed" not in attributed(engine).columns()


def test_pairs_metrics_and_pairs_of_cells_are_confirmed_too(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22), (9, 8, 7, 51, 22)]
    scores = attributed(engine, clean=[CLEAN] * 3, corrupted=lines, top=2)
    grid = dj.sweep(engine, clean=[CLEAN] * 3, corrupted=lines, mode="exact", **ASKED)
    at = ~np.isnan(scores.confirmed)
    assert np.array_equal(scores.confirmed[at], (grid.values - grid.corrupted[:, None, None])[at])
    mean = np.abs(scores.values.mean(0)).reshape(-1)
    assert set(np.flatnonzero(at[0])) == set(np.argsort(-mean)[:2])
    assert (at == at[0]).all()
    assert np.array_equal(scores.columns("cell")["confirmed"], scores.confirmed.mean(0).reshape(-1), equal_nan=True)
    several = attributed(engine, metric=["logit(17)", "logit(42)"], top=3)
    assert 3 <= (~np.isnan(several.confirmed[0])).sum() <= 6
    one = several.of("logit(42)")
    assert np.array_equal(one.confirmed, several.confirmed[1], equal_nan=True)
    assert one.correlation is not None
    with pytest.raises(UsageError, match="each has a correlation of its own"):
        _ = several.correlation
    both = attributed(engine, in_pairs=True, top=4)
    cells = set(zip(*map(list, np.unravel_index(np.flatnonzero(~np.isnan(both.confirmed)), (12, 12))), strict=True))
    assert len(cells) == 4
    assert all(a <= b for a, b in cells)


def test_an_attribution_that_was_confirmed_is_reproduced_with_it(engine: RemoteEngine) -> None:
    scores = attributed(engine, top=3)
    found = dj.reproduce(engine, scores)
    assert found.same
    assert np.array_equal(found.again.confirmed, scores.confirmed, equal_nan=True)
    kept = scores.replies[0]
    other = [(first + 1e-9,) for (first,) in kept.confirmed.changes]
    changed = structs.replace(kept, confirmed=structs.replace(kept.confirmed, changes=tuple(other)))
    differs = dj.reproduce(engine, dj.Grid([changed]))
    assert not differs.same
    assert "the 12 values are the same, and the cells that were computed exactly are not" in repr(differs)


def test_what_the_exact_sweep_notes_is_told(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_engines_that_were_lost(*args: Any) -> dj.Grid:
        whole = swept_again(*args)
        return dj.Grid([*whole.replies[:-1], noted(whole.replies[-1], "An engine was lost.")], paired=whole.paired)

    monkeypatch.setattr(sweeping, "swept_again", of_engines_that_were_lost)
    assert attributed(engine, top=3).notes == ("An engine was lost.",)


def test_a_sweep_that_fails_leaves_the_scores(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Any:
        raise SlabFull("There is no page.")

    monkeypatch.setattr(sweeping, "swept_again", failing)
    with pytest.raises(SweepEnded, match=r"The attribution is whole, .* ended: There is no page") as caught:
        attributed(engine, top=3)
    assert np.array_equal(caught.value.grid.values, attributed(engine).values)

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "swept_again", interrupted)
    with pytest.raises(dj.WorkInterrupted, match="The attribution was interrupted") as broken:
        attributed(engine, top=3)
    scores: Any = broken.value.kept
    assert (scores.interrupted, scores.confirmed, scores.notes) == (True, None, (sweeping.UNCONFIRMED,))


def test_corrections_are_asked_for_and_told(engine: RemoteEngine, sent: list[Sweep], tmp_path: Path) -> None:
    plain = attributed(engine, site="q")
    sizes = attributed(engine, site="q", corrections=["cancellation", "attention"], top=4)
    carried = attributed(engine, site="q", corrections="attention")
    assert [one.estimate.corrections for one in sent if one.estimate] == [
        (),
        ("attention", "cancellation"),
        ("attention",),
    ]
    assert not np.allclose(carried.values, plain.values, rtol=1e-3)
    assert (sizes.are_sizes, carried.are_sizes, (sizes.values >= 0).all()) == (True, False, True)
    at = ~np.isnan(sizes.confirmed)
    assert sizes.correlation == np.corrcoef(sizes.values[at], np.abs(sizes.confirmed[at]))[0, 1]
    again = dj.Grid.read(sizes.save(tmp_path / "sizes.grid.djinn"))
    assert again.recipe["corrections"] == ("attention", "cancellation")
    assert repr(again).startswith(
        "Grid of logit(17) - logit(42) over 3 layers x 4 heads: gradient x patch from the clean"
    )
    assert "attention and cancellation corrected at q" in repr(again)
    assert "either way" in grid_view(again).html
    assert dj.reproduce(engine, again).same


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"corrections": "saturation"}, "are attention and cancellation, not saturation"),
        ({"top": 0}, "not 0"),
        ({"steps": 0}, "steps"),
        ({"top": 10**6}, "not 1,000,000"),
        ({"top": 3, "clean": None}, "estimate of no sweep"),
    ],
)
def test_what_no_sweep_confirms_is_refused(engine: RemoteEngine, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        attributed(engine, **fields)


METRIC = "logit(17) - logit(42)"


def patched(engine: RemoteEngine, path: str, **fields: Any) -> dj.Grid:
    return dj.path(engine, path, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **fields})


def test_what_a_sender_leaves_open_is_swept(engine: RemoteEngine) -> None:
    for path, over, shape in [
        ("z -> q.2[0]", ("layer", "head"), (3, 4)),
        ("z.1 → q.2[0,1]", ("head",), (4,)),
        ("mlp_out -> mlp_in.2 q.2", ("layer",), (3,)),
        ("z.1[2]->q.2[0]", (), ()),
        ("blocks.1.attn.hook_z -> blocks.2.mlp.hook_in", (), ()),
    ]:
        grid = patched(engine, path, mode="exact")
        assert (grid.over, grid.values.shape) == (over, shape)
    grid = patched(engine, "z -> q.2[0]", corrupted=None, edit=dj.zero())
    assert grid.edit == "zero"
    assert grid.unedited == grid.clean
    one, all_of_them = (patched(engine, path, mode="exact") for path in ("z.1[2] -> q.2[0]", "z -> q.2[0]"))
    assert float(one.values) == all_of_them.values[1, 2]
    assert one.columns() == {"value": [float(one.values)]}
    assert repr(one).startswith(f"Grid of {METRIC}: patch")
    assert figure(float(one.values)) in grid_view(one).plain
    assert f"edited: {figure(float(one.values))}" in grid_view(one).plain


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


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("z.1[2]", {}, "A path is written SENDER -> RECEIVERS"),
        ("z.2[1] -> q.1[0]", {}, "No path leads from z.2 to q.1: a receiver lies after its sender"),
        ("z -> q.7[0]", {}, "q.7"),
        ("z -> q.2[0]", {"corrupted": (1, 2)}, "The corrupted line has 2 tokens and the clean one 5"),
        ("z -> q.2[0]", {"corrupted": None}, "A path needs the line whose values go along it"),
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
