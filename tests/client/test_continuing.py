"""A sweep that was cut short goes on from its finished cells, and an interrupt at its very end loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import SweepEnded, UsageError
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.wire import requests as ask
from tests.client.reached import reached
from tests.client.test_sweeping import CLEAN, CORRUPTED, METRIC, swept
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("more", [{}, {"metric": [METRIC, "prob(17)"]}, {"in_pairs": True, "over": "layer"}])
def test_a_sweep_goes_on_from_its_finished_cells(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch, mode: str, more: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"mode": mode, "seed": 3, "clean": CLEAN, "corrupted": [1, *CORRUPTED[1:]]} | more
    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 4)
    whole = swept(engine, **asked)
    cut, computed = cut_short(engine, **asked), []
    assert not cut.is_whole
    kept = ~np.isnan(cut.values)
    assert 0 < np.count_nonzero(kept) < kept.size

    def note(grid: dj.Grid, done: int, total: int) -> None:
        computed.append(done)

    went_on = swept(engine, **asked, so_far=cut, on_progress=note)
    assert went_on.is_whole
    assert went_on.notes == whole.notes
    assert (went_on.mode, went_on.texts, went_on.recipe) == (whole.mode, whole.texts, whole.recipe)
    assert np.array_equal(went_on.values[kept], cut.values[kept])
    if mode == "exact":
        assert np.array_equal(went_on.values, whole.values)
    assert np.allclose(went_on.values, whole.values, atol=1e-4)
    before = np.count_nonzero(kept) // len(cut.metrics)
    assert computed[0] > before
    assert swept(engine, **asked, so_far=went_on).values.tolist() == went_on.values.tolist()


def cut_short(engine: RemoteEngine, **asked: Any) -> dj.Grid:
    """Interrupt a sweep at its first finished cells."""

    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        if done < total:
            raise KeyboardInterrupt

    return kept_of(engine, **asked, on_progress=interrupt)


def test_pairs_go_on_with_the_pair_that_was_cut_short_also_from_a_file(engine: RemoteEngine, tmp_path: Path) -> None:
    lines = {"clean": [CLEAN] * 3, "corrupted": [(9, 8, 7, n, 22) for n in (31, 32, 33)], "mode": "exact"}
    whole = swept(engine, **lines)
    seen = 0

    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        nonlocal seen
        seen += done == total
        if seen == 1 and done < total:
            raise KeyboardInterrupt

    cut = kept_of(engine, **lines, on_progress=interrupt)
    assert cut.values.shape[0] == 2
    read = dj.Grid.read(cut.save(tmp_path / "cut.grid.djinn"))
    went_on = swept(engine, **lines, so_far=read)
    assert np.array_equal(went_on.values, whole.values)
    assert went_on.is_whole


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("more", [{}, {"site": "z", "over": ("layer", "head")}, {"in_pairs": True, "over": "layer"}])
def test_kept_cells_count_as_computed_where_they_were_though_nothing_came_of_it(
    engine: RemoteEngine, mode: str, more: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"mode": mode, "metric": "0 * logit(17)", **more}
    whole = swept(engine, **asked)
    assert whole.computed > 0
    went_on = swept(engine, **asked, so_far=whole)
    assert went_on.computed == whole.computed
    assert went_on.replies[0].rechecked == whole.replies[0].rechecked


def test_a_kept_cell_that_is_wrong_is_found_by_the_recheck(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "RECHECKED", 99)
    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 4)
    whole = swept(engine)
    cut = cut_short(engine)
    number = int(np.flatnonzero((~np.isnan(cut.values)).reshape(-1) & (cut.values.reshape(-1) != cut.corrupted))[0])
    values = cut.values.copy()
    values.reshape(-1)[number] += 1
    went_on = swept(engine, so_far=with_values(cut, values))
    assert went_on.mode == "exact"
    assert "Cells computed together differed" in went_on.notes[-1]
    assert np.allclose(went_on.values, whole.values, atol=1e-4)


@pytest.mark.parametrize("cells", ["told", "kept"])
def test_cells_that_the_engine_distrusts_are_not_gone_on_from(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch, cells: str
) -> None:
    """After the recheck each cell is computed anew, and those that are not yet are as wrong as before."""
    exact = swept(engine, mode="exact")
    whole, values_of, told = swept(engine), sweeps.values_of, list[int]()

    def apart(*args: Any) -> Any:
        found = yield from values_of(*args)
        return {number: (value + 1.0,) for number, (value,) in found.items()}

    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        told.append(done)
        if done == 3 and (cells == "kept" or total in told):
            raise KeyboardInterrupt

    so_far = None if cells == "told" else with_values(whole, np.where(whole.values == whole.corrupted, whole.values, 7))
    monkeypatch.setattr(sweeps, "values_of", apart)
    cut = kept_of(engine, on_progress=interrupt, so_far=so_far)
    kept = ~np.isnan(cut.values)
    assert np.count_nonzero(kept) == 3
    assert np.array_equal(cut.values[kept], exact.values[kept])


def with_values(grid: dj.Grid, values: Any) -> dj.Grid:
    [reply] = grid.replies
    [measured] = reply.measured
    changed = msgspec.structs.replace(measured, values=from_numpy(values))
    return dj.Grid([msgspec.structs.replace(reply, measured=(changed,))])


@pytest.mark.parametrize(
    "other",
    [
        {"clean": [9, 8, 7, 1, 22]},
        {"corrupted": [9, 8, 7, 2, 22]},
        {"site": "resid_pre"},
        {"seed": 1},
        {"edit": "mean"},
    ],
)
def test_a_grid_of_another_sweep_is_not_gone_on_from(engine: RemoteEngine, other: dict[str, Any]) -> None:
    cut = cut_short(engine, mode="exact")
    with pytest.raises(UsageError, match="is of another sweep: its lines, model or arguments are others"):
        swept(engine, **{"mode": "exact", **other}, so_far=cut)
    with pytest.raises(UsageError, match=r"so_far is .*Grid"):
        swept(engine, so_far=3)


def test_a_grid_of_other_weights_is_not_gone_on_from(engine: RemoteEngine) -> None:
    """An engine of the same folder, in which the model has been trained on meanwhile."""
    cut = cut_short(engine, mode="exact")
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0] += 1
    with (
        reached(build_desk(model, tokenizer())) as [trained],
        pytest.raises(UsageError, match="is of another sweep: its lines, model or arguments are others"),
    ):
        swept(trained, mode="exact", so_far=cut)


def test_an_interrupt_while_its_session_closes_keeps_the_whole_grid(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept(engine, mode="exact")
    asked, closing = engine.channel.ask, 0

    def ask_and_interrupt(request: ask.Request) -> Any:
        nonlocal closing
        reply = asked(request)
        if isinstance(request, ask.Close):
            closing += 1
            raise KeyboardInterrupt
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(engine.channel, "ask", ask_and_interrupt)
        grid = kept_of(engine, mode="exact")
        pairs = kept_of(engine, mode="exact", clean=[CLEAN] * 2, corrupted=[CORRUPTED] * 2)
    assert closing == 2
    assert np.array_equal(grid.values, whole.values)
    assert (grid.interrupted, grid.notes[-1]) == (True, "The sweep is whole; it was interrupted at its end.")
    assert grid.is_whole
    assert (pairs.values.shape[0], pairs.notes) == (1, ("The sweep is not whole: it was interrupted in pair 0.",))
    assert not pairs.is_whole
    desk.settle()
    assert not desk.engine.sessions


def kept_of(engine: RemoteEngine, **given: Any) -> Any:
    with pytest.raises(dj.WorkInterrupted) as broken:
        swept(engine, **given)
    return broken.value.kept


def test_a_grid_with_missing_pairs_is_not_whole_also_from_a_file(engine: RemoteEngine, tmp_path: Path) -> None:
    lines = {"clean": [CLEAN, CLEAN[1:], CLEAN], "corrupted": [CORRUPTED, CORRUPTED[1:], CORRUPTED]}
    with pytest.raises(SweepEnded) as ended:
        swept(engine, **lines)
    grid = ended.value.grid
    assert isinstance(grid, dj.Grid)
    assert (grid.values.shape[0], grid.missing, grid.is_whole) == (1, 2, False)
    assert not dj.Grid.read(grid.save(tmp_path / "a.grid.djinn")).is_whole


def test_a_whole_grid_may_have_cells_that_are_not_finite(engine: RemoteEngine) -> None:
    whole = swept(engine, mode="exact")
    assert with_values(whole, np.full_like(whole.values, np.nan)).is_whole


def test_a_kept_cell_of_the_unedited_value_is_judged_as_one_that_was_computed(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that changes the last bits alone may leave the metric as it is: no cell was left out wrongly."""
    monkeypatch.setattr(sweeps, "RECHECKED", 99)
    monkeypatch.setattr(sweeps, "LEFT_OUT", 99)
    asked: dict[str, Any] = {"clean": None, "edit": dj.scale(1.000002)}
    whole = swept(engine, **asked)
    exact = swept(engine, **asked, mode="exact")
    assert (exact.values != exact.corrupted).any()
    went_on = swept(engine, **asked, so_far=with_values(whole, np.full_like(whole.values, whole.corrupted)))
    assert went_on.mode == "fast"
    assert went_on.notes == whole.notes
