"""Sweeps: what is swept, grids and their files, and a sweep that goes on from its finished cells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.wavefront import Wavefront
from djinn_jupyter.errors import SweepEnded, UsageError
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.wire import requests as ask
from tests.client.direct import DirectChannel
from tests.client.reached import reached
from tests.engine.desk import ME, Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build

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


def test_a_grid_tells_how_it_was_made_and_has_a_row_for_each_cell(engine: RemoteEngine, tmp_path: Path) -> None:
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
    asked: dict[str, Any] = {"clean": None, "edit": dj.zero(), "site": "z.*[0,1]", "mode": "exact"}
    starred = swept(engine, over=None, **asked)
    assert starred.over == ("layer",)
    assert np.array_equal(starred.values, swept(engine, over="layer", **asked).values)
    grid = swept(engine, clean=None, edit=dj.scale(1), coefs=[0, 1, 2], over="layer,coef", site="z.*")
    assert grid.places() == ((0, 1, 2), (0.0, 1.0, 2.0))
    assert dj.Grid.read(grid.save(tmp_path / "dose.grid.djinn")).columns() == grid.columns()
    assert swept(engine, edit="mean").edit == "mean over positions"
    assert swept(engine, edit="resample", seed=2).edit == "resample positions"
    grid = swept(engine)
    table = grid.columns()
    assert list(table) == ["layer", "position", "token", "value"]
    row = {name: column[7] for name, column in table.items()}
    assert row == {"layer": 1, "position": 2, "token": grid.texts[2], "value": grid.values[1, 2]}


def test_pairs_have_a_first_axis_and_statistics_of_each_cell(engine: RemoteEngine) -> None:
    lines = [CORRUPTED, (9, 8, 7, 41, 22)]
    grid = swept(engine, clean=[CLEAN, CLEAN], corrupted=lines, mode="exact")
    assert grid.over == ("pair", *OVER)
    for number, line in enumerate(lines):
        alone = swept(engine, corrupted=line, mode="exact")
        assert np.array_equal(grid.values[number], alone.values)
        assert (grid.corrupted[number], grid.clean[number]) == (alone.corrupted, alone.clean)
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
    assert list(found.columns()) == list(table)
    assert [found.columns()[axis] for axis in OVER] == [table[axis] for axis in OVER]
    assert set(table["pairs"]) == {5}
    with pytest.raises(UsageError, match="by is 'pair' or 'cell', not 'position'"):
        grid.to_pandas(by="position")
    with pytest.raises(UsageError, match="two or more pairs"):
        swept(engine).statistics()
    asked = {"corrupted": None, "noise": dj.noise("0:2", scale=2.0)}
    grid = swept(engine, samples=3, seed=4, **asked)
    assert grid.over == ("pair", *OVER)
    assert [one.seed for one in grid.replies] == [4, 5, 6]
    assert np.array_equal(grid.values[1], swept(engine, seed=5, **asked).values)
    assert len(set(grid.corrupted.tolist())) == 3
    assert len(set(grid.clean.tolist())) == 1
    assert "noise 2 at 0, 1" in repr(grid)
    with pytest.raises(SweepEnded, match=r"in pair 1: its cells are \[3, 4\], .* equally many tokens") as ended:
        swept(engine, clean=[CLEAN, CLEAN[:4]], corrupted=[CORRUPTED, CORRUPTED[:4]])
    assert ended.value.grid.values.shape == (1, 3, 5)


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
    for name, text, said in [
        ("p.jsonl", "\n", "has no pairs; write one a line"),
        ("p.json", "{}", r"is not a list of pairs \(clean, corrupted\)"),
        ("p.json", '[["a"]]', "pair 0 of .* is neither"),
    ]:
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
    known = ~np.isnan(grid.values)
    assert 9 <= known.sum() < known.size
    assert grid.mode == "exact"
    assert np.array_equal(grid.values[known], whole.values[known])


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


def test_a_session_of_another_engine_is_no_line_of_this_one(engine: RemoteEngine) -> None:
    """One of the same name may be here, with another line."""
    session = engine.session("line")
    session.run(CORRUPTED, max_new_tokens=0)
    assert swept(engine, corrupted=session).corrupted == swept(engine).corrupted
    there = DirectChannel(msgspec.structs.replace(engine.channel.welcome, engine="other"), lambda *_: None)
    with pytest.raises(UsageError, match=r"Session 'line' is at another engine than this; give its text"):
        swept(engine, corrupted=RemoteSession(there, "line"))


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


def test_a_grid_of_another_sweep_or_of_other_weights_is_not_gone_on_from(engine: RemoteEngine) -> None:
    for other in [
        {"clean": [9, 8, 7, 1, 22]},
        {"corrupted": [9, 8, 7, 2, 22]},
        {"site": "resid_pre"},
        {"seed": 1},
        {"edit": "mean"},
    ]:
        cut = cut_short(engine, mode="exact")
        with pytest.raises(UsageError, match="is of another sweep: its lines, model or arguments are others"):
            swept(engine, **{"mode": "exact", **other}, so_far=cut)
        with pytest.raises(UsageError, match=r"so_far is .*Grid"):
            swept(engine, so_far=3)
    # An engine of the same folder, in which the model has been trained on meanwhile.
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


def test_a_grid_with_missing_pairs_is_not_whole_and_one_with_cells_that_are_not_finite_is(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    lines = {"clean": [CLEAN, CLEAN[1:], CLEAN], "corrupted": [CORRUPTED, CORRUPTED[1:], CORRUPTED]}
    with pytest.raises(SweepEnded) as ended:
        swept(engine, **lines)
    grid = ended.value.grid
    assert (grid.values.shape[0], grid.missing, grid.is_whole) == (1, 2, False)
    assert not dj.Grid.read(grid.save(tmp_path / "a.grid.djinn")).is_whole
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
