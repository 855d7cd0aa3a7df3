"""`dj.sweep` against an engine in this process: lines of every kind, pairs, what a grid tells, and how a sweep ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.errors import MissingDependency, SweepEnded, UsageError
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import ME, Desk

CLEAN, CORRUPTED = (9, 8, 7, 21, 22), (9, 8, 7, 31, 22)
METRIC = "logit(17) - logit(42)"
OVER = ("layer", "position")


def swept(engine: RemoteEngine, **fields: Any) -> dj.Grid:
    asked = {"clean": CLEAN, "corrupted": CORRUPTED, "site": "resid_post", "over": OVER, "metric": METRIC}
    return dj.sweep(engine, **{**asked, **fields})


def test_a_line_is_a_text_or_tokens_or_a_session(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    session.run(CORRUPTED, max_new_tokens=0)
    grid = swept(engine, mode="exact")
    same = swept(engine, corrupted=session, clean=np.array(CLEAN), mode="exact")
    assert np.array_equal(grid.values, same.values)
    text = engine.detokenize(CORRUPTED)
    as_text = swept(engine, corrupted=text, clean=text, over="layer, position")
    assert (as_text.values == as_text.corrupted).all()
    assert [one.name for one in engine.sessions()] == ["mine"]


def test_a_grid_tells_how_it_was_made_and_how_exact_it_is(engine: RemoteEngine) -> None:
    grid = swept(engine, seed=7)
    assert (grid.values.dtype, grid.values.shape) == (np.float64, (3, 5))
    assert (grid.values[:, :3] == grid.corrupted).all()
    assert grid.clean != grid.corrupted
    assert grid.computed == 5
    assert grid.largest_difference is not None
    assert grid.largest_difference < 2e-5
    assert grid.recipe["seed"] == 7
    assert "3 layers x 5 positions" in repr(grid)
    assert swept(engine, mode="exact").largest_difference is None


def test_pairs_have_a_first_axis(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22)]
    grid = swept(engine, clean=[CLEAN, CLEAN], corrupted=lines, mode="exact")
    assert grid.over == ("pair", *OVER)
    for number, line in enumerate(lines):
        alone = swept(engine, corrupted=line, mode="exact")
        assert np.array_equal(grid.values[number], alone.values)
        assert (grid.corrupted[number], grid.clean[number]) == (alone.corrupted, alone.clean)


def test_pairs_have_statistics_of_each_cell(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22), (9, 8, 7, 51, 22)]
    grid = swept(engine, clean=[CLEAN] * 3, corrupted=lines)
    found = grid.statistics(seed=3)
    changes = grid.values - grid.corrupted[:, None, None]
    assert np.allclose(found.change, changes.mean(0))
    assert (found.p[:, :3] == 1).all()  # nothing changes there
    assert (found.low <= found.change).all()
    table = grid.columns(by="cell")
    assert list(table) == [*OVER, "mean", "change", "standard_error", "low", "high", "p", "pairs"]
    assert {name: column[7] for name, column in table.items()}["change"] == found.change[1, 2]
    assert set(table["pairs"]) == {3}
    with pytest.raises(UsageError, match="two or more pairs"):
        swept(engine).statistics()


def test_a_line_in_noise_has_its_samples_as_pairs(engine: RemoteEngine) -> None:
    asked = {"corrupted": None, "noise": dj.noise("0:2", scale=2.0)}
    grid = swept(engine, samples=3, seed=4, **asked)
    assert grid.over == ("pair", *OVER)
    assert [one.seed for one in grid.replies] == [4, 5, 6]
    assert np.array_equal(grid.values[1], swept(engine, seed=5, **asked).values)
    assert len(set(grid.corrupted.tolist())) == 3
    assert len(set(grid.clean.tolist())) == 1
    assert "noise 2 at 0, 1" in repr(grid)


def test_coefficients_are_an_axis_and_some_edits_have_a_name(engine: RemoteEngine, tmp_path: Path) -> None:
    grid = swept(engine, clean=None, edit=dj.scale(1), coefs=[0, 1, 2], over="layer,coef", site="z.*")
    assert grid.places() == ((0, 1, 2), (0.0, 1.0, 2.0))
    assert dj.Grid.read(grid.save(tmp_path / "dose.grid.djinn")).columns() == grid.columns()
    assert swept(engine, edit="mean").edit == "mean over positions"
    assert swept(engine, edit="resample", seed=2).edit == "resample positions"


def test_its_table_has_a_row_for_each_cell(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = swept(engine)
    table = grid.columns()
    assert list(table) == ["layer", "position", "token", "value"]
    row = {name: column[7] for name, column in table.items()}
    assert row == {"layer": 1, "position": 2, "token": grid.texts[2], "value": grid.values[1, 2]}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pip install pandas"):
        grid.to_pandas()


def test_a_grid_is_kept_in_a_file(engine: RemoteEngine, tmp_path: Path) -> None:
    grid = swept(engine, clean=[CLEAN] * 2, corrupted=[CORRUPTED] * 2)
    again = dj.Grid.read(grid.save(tmp_path / "ioi.grid.djinn"))
    assert np.array_equal(grid.values, again.values)
    assert (repr(again), again.recipe, again.largest_difference) == (repr(grid), grid.recipe, grid.largest_difference)
    with pytest.raises(UsageError, match=r"ends in \.grid\.djinn"):
        grid.save(tmp_path / "ioi.djinn")
    (tmp_path / "other.grid.djinn").write_bytes(b"\x93nothing")
    with pytest.raises(UsageError, match="is no grid"):
        dj.Grid.read(tmp_path / "other.grid.djinn")


def test_a_session_closed_in_mid_sweep_leaves_the_finished_cells(engine: RemoteEngine, desk: Desk) -> None:
    whole = swept(engine, mode="exact")

    def close(grid: dj.Grid, done: int, total: int) -> None:
        if done == 9 and "sweep 1" in desk.engine.sessions:
            desk.engine.submit(ask.Close(session="sweep 1"), ME, lambda reply: None)

    with pytest.raises(SweepEnded, match=r"\d+ cells were finished: .* was closed") as ended:
        swept(engine, mode="exact", on_progress=close)
    grid = ended.value.grid
    assert isinstance(grid, dj.Grid)
    known = ~np.isnan(grid.values)
    assert 9 <= known.sum() < known.size
    assert grid.mode == "exact"
    assert np.array_equal(grid.values[known], whole.values[known])


def test_an_interrupt_returns_the_finished_cells_and_ends_the_sweep(engine: RemoteEngine, desk: Desk) -> None:
    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    grid = swept(engine, mode="exact", on_progress=interrupt)
    assert (~np.isnan(grid.values)).sum() == 4
    assert grid.notes == ("The sweep is not whole: it was interrupted.",)
    assert not desk.engine.sessions


def test_a_name_that_another_takes_at_the_same_moment_is_left_to_it(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteEngine, "sessions", lambda self: ())
    desk.engine.ask(ask.Open(session="sweep 1"), Holder(name="another", user=ME.user))
    engine.session("sweep 2")
    assert swept(engine).computed == 5
    assert set(desk.engine.sessions) == {"sweep 1", "sweep 2"}


def test_a_notebook_that_is_called_as_sweeps_are_is_left_to_itself(engine: RemoteEngine, desk: Desk) -> None:
    engine.session("in/sweep 1.ipynb")
    assert swept(engine).computed == 5
    assert set(desk.engine.sessions) == {"in/sweep 1.ipynb"}


def test_an_interrupt_ends_a_sweep_of_pairs_with_the_pair_that_it_meets(engine: RemoteEngine, desk: Desk) -> None:
    seen: list[float] = []

    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        seen.append(grid.corrupted)
        if len(seen) == 15 + 4:
            raise KeyboardInterrupt

    lines = [np.array(CORRUPTED)] * 3
    grid = swept(engine, clean=[np.array(CLEAN)] * 3, corrupted=lines, mode="exact", on_progress=interrupt)
    assert (~np.isnan(grid.values)).sum(axis=(1, 2)).tolist() == [15, 4]
    assert set(seen) == set(grid.corrupted.tolist())
    assert "token" not in grid.columns()
    assert not desk.engine.sessions


def test_a_pair_that_does_not_fit_the_first_leaves_those_before_it(engine: RemoteEngine) -> None:
    with pytest.raises(SweepEnded, match=r"in pair 1: its cells are \[3, 4\], .* equally many tokens") as ended:
        swept(engine, clean=[CLEAN, CLEAN[:4]], corrupted=[CORRUPTED, CORRUPTED[:4]])
    assert isinstance(ended.value.grid, dj.Grid)
    assert ended.value.grid.values.shape == (1, 3, 5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"over": "depth"}, "not over depth"),
        ({"over": ()}, "not over nothing"),
        ({"clean": [CLEAN], "corrupted": [CORRUPTED] * 2}, "equally many lines"),
        ({"clean": CLEAN, "corrupted": [CORRUPTED]}, "two lists"),
        ({"metric": "norm"}, "A metric reads logits"),
        ({"edit": "median"}, "'median' is no edit by name"),
        ({"corrupted": None}, "needs the line to edit"),
        ({"samples": 2}, "give it too, as noise="),
        ({"noise": dj.noise(1)}, "takes one clean line"),
        ({"noise": dj.noise(1), "corrupted": None, "samples": 0}, "at least one sample"),
    ],
)
def test_what_cannot_be_swept_is_refused_and_no_session_stays(
    engine: RemoteEngine, desk: Desk, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        swept(engine, **fields)
    assert not desk.engine.sessions
