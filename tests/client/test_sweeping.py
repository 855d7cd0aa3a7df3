"""`dj.sweep` against an engine in this process: lines of every kind, pairs, what a grid tells, and how a sweep ends."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.wavefront import Wavefront
from djinn_jupyter.errors import MissingDependency, SweepEnded, UsageError
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.wire import requests as ask
from tests.client.direct import DirectChannel
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
    lines = [CORRUPTED, *((9, 8, 7, other, 22) for other in (41, 51, 61, 71))]
    grid = swept(engine, clean=[CLEAN] * 5, corrupted=lines)
    found = grid.statistics(seed=3)
    changes = grid.values - grid.corrupted[:, None, None]
    assert np.allclose(found.change, changes.mean(0))
    assert (found.p[:, :3] == 1).all()  # nothing changes there
    assert (found.low <= found.change).all()
    table = grid.columns(by="cell")
    assert list(table) == [*OVER, "mean", "change", "standard_error", "low", "high", "p", "pairs"]
    assert {name: column[7] for name, column in table.items()}["change"] == found.change[1, 2]
    assert set(table["pairs"]) == {5}
    with pytest.raises(UsageError, match="by is 'pair' or 'cell', not 'position'"):
        grid.to_pandas(by="position")  # type: ignore[arg-type]
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


def test_several_metrics_are_an_axis_and_each_has_its_own_grid(engine: RemoteEngine, tmp_path: Path) -> None:
    two = [METRIC, "prob(17)"]
    grid = swept(engine, metric=two, clean=[CLEAN] * 2, corrupted=[CORRUPTED, (9, 8, 7, 41, 22)], mode="exact")
    assert (grid.over, grid.values.shape) == (("pair", "metric", *OVER), (2, 2, 3, 5))
    assert grid.corrupted.shape == grid.clean.shape == (2, 2)
    for number, text in enumerate(two):
        alone = swept(engine, metric=text, mode="exact")
        assert np.array_equal(grid.of(text).values[0], alone.values)
        assert np.array_equal(grid.of(number).statistics().p, grid.statistics().p[number])
    assert grid.recipe["metric"] == two
    assert set(grid.columns()["metric"]) == set(two)
    again = dj.Grid.read(grid.save(tmp_path / "two.grid.djinn"))
    assert (again.over, again.columns()) == (grid.over, grid.columns())
    assert swept(engine, metric=[METRIC]).over == ("metric", *OVER)
    with pytest.raises(UsageError, match="no metric 'rank"):
        grid.of("rank(17)")


def test_pairs_come_from_a_list_or_a_file_and_may_differ_in_length(engine: RemoteEngine, tmp_path: Path) -> None:
    longer = ((9, 8, 7, 6, 21, 22), (9, 8, 7, 6, 31, 22))
    asked = {"clean": None, "corrupted": None, "align": [(-2, -2), -1, "0"], "mode": "exact"}
    grid = swept(engine, pairs=[(CLEAN, CORRUPTED), longer], **asked)
    assert (grid.values.shape, grid.positions) == ((2, 3, 3), (0, 3, 4))
    assert grid.columns()["position"] == [0, 3, 4] * 3 + [0, 4, 5] * 3
    assert np.array_equal(grid.values[0], swept(engine, mode="exact").values[:, [0, 3, 4]])
    file = tmp_path / "pairs.jsonl"
    lines = [{"clean": list(CLEAN), "corrupted": list(CORRUPTED)}, {"clean": longer[0], "corrupted": longer[1]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert np.array_equal(swept(engine, pairs=file, **asked).values, grid.values)
    one = swept(engine, clean=None, edit=dj.zero(), positions=[0, engine.tokenize("x").texts[0]][:1], mode="exact")
    assert one.positions == (0,)
    file.write_text('{"clean": [1, 2]}')
    with pytest.raises(UsageError, match=r"line 1 of .* is neither"):
        swept(engine, pairs=file, **asked)
    with pytest.raises(UsageError, match="Give the lines once"):
        swept(engine, pairs=file)


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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.jsonl", "\n", "has no pairs; write one a line"),
        ("p.json", "{}", r"is not a list of pairs \(clean, corrupted\)"),
        ("p.json", '[["a"]]', "pair 0 of .* is neither"),
    ],
)
def test_a_file_that_has_no_pairs_is_one_sentence(
    engine: RemoteEngine, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        dj.sweep(engine, pairs=tmp_path / name, site="resid_post", over=OVER, metric=METRIC)


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


def test_a_starred_layer_is_an_axis_also_where_heads_are_named(engine: RemoteEngine) -> None:
    asked: dict[str, Any] = {"clean": None, "edit": dj.zero(), "site": "z.*[0,1]", "mode": "exact"}
    starred = swept(engine, over=None, **asked)
    assert starred.over == ("layer",)
    assert np.array_equal(starred.values, swept(engine, over="layer", **asked).values)


def test_memory_that_runs_out_in_mid_sweep_is_one_sentence_and_leaves_the_finished_cells(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept(engine)
    run, chunks = Wavefront.run, []

    def full(self: Any, lines: Any) -> Any:
        chunks.append(len(lines))
        if len(chunks) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return run(self, lines)

    monkeypatch.setattr(Wavefront, "run", full)
    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 2)
    with pytest.raises(SweepEnded) as ended:
        swept(engine)
    assert re.fullmatch(
        r"The sweep ended before its last cell; \d+ cells were finished: The device has no memory left for a pass of .*"
        r"Tried to allocate 2 GiB.* Close sessions, or compute each cell alone \(--exact\)\.",
        str(ended.value),
    )
    grid = ended.value.grid
    known = ~np.isnan(grid.values)
    assert sum(chunks[:2]) <= known.sum() < known.size
    assert np.abs(grid.values - whole.values)[known].max() < 2e-5
    assert desk.engine.budget.held()["sweeps"] == 0
    assert not desk.engine.sessions


def test_an_interrupt_raises_with_the_finished_cells_and_ends_the_sweep(engine: RemoteEngine, desk: Desk) -> None:
    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(dj.WorkInterrupted, match=r"^The sweep was interrupted, .*sys\.last_value\.kept\.$") as broken:
        swept(engine, mode="exact", on_progress=interrupt)
    grid: Any = broken.value.kept
    assert (~np.isnan(grid.values)).sum() == 4
    assert grid.interrupted
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
    with pytest.raises(dj.WorkInterrupted) as broken:
        swept(engine, clean=[np.array(CLEAN)] * 3, corrupted=lines, mode="exact", on_progress=interrupt)
    grid: Any = broken.value.kept
    assert (~np.isnan(grid.values)).sum(axis=(1, 2)).tolist() == [15, 4]
    assert set(seen) == set(grid.corrupted.tolist())
    assert "token" not in grid.columns()
    assert not desk.engine.sessions


def test_a_session_of_another_engine_is_no_line_of_this_one(engine: RemoteEngine) -> None:
    """One of the same name may be here, with another line."""
    session = engine.session("line")
    session.run(CORRUPTED, max_new_tokens=0)
    assert swept(engine, corrupted=session).corrupted == swept(engine).corrupted
    there = DirectChannel(msgspec.structs.replace(engine.channel.welcome, engine="other"), lambda *_: None)
    with pytest.raises(UsageError, match=r"Session 'line' is at another engine than this; give its text"):
        swept(engine, corrupted=RemoteSession(there, "line"))


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
        ({"corrupted": ""}, "A line has no tokens"),
        ({"clean": []}, "A line has no tokens"),
        ({"clean": CLEAN, "corrupted": [CORRUPTED]}, "two lists"),
        ({"metric": "norm"}, "A metric reads logits"),
        ({"metric": []}, "from 1 to 64 metrics"),
        ({"window": 0}, "counts layers or positions"),
        ({"window": {"head": 2}}, "head is none of them"),
        ({"over": None}, "Say what is swept"),
        ({"positions": "2:"}, "need both ends"),
        ({"align": 3.5}, "3.5 names no positions"),
        ({"align": [("0:2", "0:3")]}, "not equally many positions"),
        ({"edit": "median"}, "'median' is no edit by name"),
        ({"corrupted": None}, "needs the line to edit"),
        ({"samples": 2}, "give it too, as noise="),
        ({"noise": dj.noise(1)}, "takes one clean line"),
        ({"noise": dj.noise(1), "corrupted": None, "samples": 0}, "draws 1 to 10,000 samples"),
    ],
)
def test_what_cannot_be_swept_is_refused_and_no_session_stays(
    engine: RemoteEngine, desk: Desk, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        swept(engine, **fields)
    assert not desk.engine.sessions
