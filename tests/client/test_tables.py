"""Readings that are tables: each has columns of equal length with its own numbers, and is a table of pandas."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.looks import Effect, Lens
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.watching import Watched
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.methods.direct.api import Attribution
from tests.client import tables

LINE = tables.LINE


@pytest.fixture(autouse=True)
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for pandas, which tests do without: a table is what it was made of."""
    module = ModuleType("pandas")
    vars(module)["DataFrame"] = dict
    monkeypatch.setitem(sys.modules, "pandas", module)


def table(reading: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = reading.columns()
    frame = reading.to_pandas()
    assert list(frame) == list(found)
    assert all(all(map(tables.the_same, frame[name], column)) for name, column in found.items())
    assert len({len(column) for column in found.values()}) == 1
    return found


@pytest.mark.parametrize("kind", tables.TABLES, ids=lambda kind: kind.__name__)
def test_everything_that_is_a_table_is_one_of_pandas(engine: RemoteEngine, tmp_path: Path, kind: type) -> None:
    reading = tables.TABLES[kind](engine, tmp_path)
    assert type(reading) is kind
    assert tables.of_equal_length(table(reading))
    shown = reading._repr_mimebundle_()
    assert shown["text/plain"]
    assert "<div" in shown["text/html"]


def test_whatever_tells_itself_by_column_is_a_table_and_is_tried_here() -> None:
    kinds = {*tables.kinds_with_columns()}
    assert kinds == set(tables.TABLES)
    assert all(callable(vars(kind).get("to_pandas", getattr(kind, "to_pandas", None))) for kind in kinds)


def test_descriptions_are_a_tuple_and_a_row_each(engine: RemoteEngine) -> None:
    assert (engine.sessions(), engine.sessions().columns()) == ((), {})
    session = tables.stopped(engine)
    for listed in (engine.sessions(), engine.modules(), engine.people(), session.breakpoints()):
        found = table(listed)
        assert isinstance(listed, tuple)
        assert all(found[name] == [getattr(one, name) for one in listed] for name in found)
    tables.stopped(engine)
    head, *rows = repr(engine.sessions()).splitlines()
    assert head.split() == ["name", "state", "stopped_at", "step", "tokens", "residency", "idle_seconds", "notebook"]
    assert [len(row) < 160 and "paused" in row for row in rows] == [True]


def test_the_stops_of_a_session_are_a_row_each_and_the_present_one_is_marked(engine: RemoteEngine) -> None:
    session = tables.stopped(engine)
    session.step()
    session.back()
    history = session.history()
    found = table(history)
    assert (len(history), history.present, history.stops) == (2, 0, tuple(history))
    assert found["site"] == [stop.site for stop in history]
    assert found["present"] == [True, False]
    empty = engine.session("empty").history()
    assert (empty, empty.present, empty.columns()) == ((), None, {})


def test_the_tree_has_a_row_for_each_stop_where_it_was_made_and_one_for_a_session_without(engine: RemoteEngine) -> None:
    session = tables.stopped(engine)
    fork = session.fork("other")
    fork.step()
    engine.session("idle")
    found = table(engine.tree())
    rows = list(zip(*(found[name] for name in ("session", "forked_from", "stop", "present")), strict=True))
    assert rows == [("mine", None, 0, True), ("other", "mine", 1, True), ("idle", None, None, False)]


def test_collected_values_are_a_row_a_position(engine: RemoteEngine, tmp_path: Path) -> None:
    every = engine.collect([LINE, [3, 4]], "z.1[2]", to=tmp_path / "all")["z.1[2]"]
    found = table(every)
    places = list(zip(found["prompt"], found["position"], found["token"], strict=True))
    assert places == [*((0, at, token) for at, token in enumerate(LINE)), (1, 0, 3), (1, 1, 4)]
    assert found["value 3"] == np.asarray(every).reshape(7, -1)[:, 3].tolist()
    ends = table(engine.collect([LINE, [3, 4]], "z.1", to=tmp_path / "ends", positions=[-1, 0])["z.1"])
    assert list(zip(ends["prompt"], ends["position"], ends["token"], strict=True)) == [
        (0, 4, 9), (0, 0, 9), (1, 1, 4), (1, 0, 3),
    ]  # fmt: skip


def test_losses_and_patterns_are_a_row_a_number(engine: RemoteEngine) -> None:
    losses = engine.loss([LINE, [3, 4]])
    found = table(losses)
    assert list(zip(found["prompt"], found["position"], found["token"], strict=True)) == [
        (0, 1, 8), (0, 2, 7), (0, 3, 21), (0, 4, 9), (1, 1, 4),
    ]  # fmt: skip
    assert found["loss"] == [*losses[0].tolist(), *losses[1].tolist()]
    session = engine.session("mine")
    session.run(LINE, max_new_tokens=0)
    patterns = session.patterns()
    found = table(patterns)
    assert len(found["weight"]) == 3 * 4 * 15
    at = tuple(np.array(found[name]) for name in ("layer", "head", "query", "key"))
    assert np.array_equal(patterns.values[at], np.float32(found["weight"]))
    assert all(key <= query for query, key in zip(found["query"], found["key"], strict=True))


def test_lens_and_effect_are_a_row_a_token(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    lens = session.lens(3, positions=[1, 4])
    found = table(lens)
    assert found["position"] == [1] * 3 + [4] * 3
    assert found["rank"] == [1, 2, 3, 1, 2, 3]
    assert found["probability"] == [one.probability for row in lens.rows for one in row.top]
    session.edit(dj.scale(0.0))
    effect = session.effect()
    shifts = table(effect)
    assert shifts["token"][: len(effect.shifts)] == [one.token for one in effect.shifts]
    assert shifts["logit_after"][0] == effect.shifts[0].logit_after


def test_recordings_are_a_row_a_position(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    session.watch("resid_post.1")
    session.watch("resid_post.1", direction=np.ones(32, dtype=np.float32), name="ones")
    session.run(LINE, max_new_tokens=2, free=True)
    watched = session.watched("resid_post.1")
    found = table(watched)
    assert list(zip(found["pass"], found["run"], found["position"], strict=True)) == [
        *((0, 1, at) for at in range(5)),
        (1, 1, 5),
    ]
    assert found["value 3"] == [float(row[3]) for value in watched.values for row in value]
    along = table(session.watched("resid_post.1", "ones"))
    sums = [sum(found[f"value {n}"][at] for n in range(32)) for at in range(6)]
    assert along["value"] == pytest.approx(np.array(sums) / 32**0.5, 1e-4)  # a direction has length 1


def test_a_trace_and_the_tokens_and_rules_of_a_run_are_tables(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    with engine.memory_trace(hertz=100) as trace:
        session.run(LINE, max_new_tokens=1)
    found = table(trace)
    assert found["at"] == [one.at for one in trace.readings]
    assert found["accounted"][-1] == trace.readings[-1].accounted
    assert found["session mine"][-1] == dict(trace.readings[-1].sessions)["mine"]
    session = engine.session("mine", fresh=True)
    session.steer("mlp_out.1", dj.scale(0.5))
    done = session.run(tables.LINE, max_new_tokens=1)
    assert table(done.top)["probability"] == [one.probability for one in done.top]
    assert table(done.rules)["number"] == [1]


def test_a_collection_is_one_table_of_all_its_sites(engine: RemoteEngine, tmp_path: Path) -> None:
    acts = engine.collect([tables.LINE, tables.OTHER[:3]], "z.1,resid_post.1[2]", to=tmp_path)
    found = acts.columns()
    alone = acts["resid_post.1[2]"].columns()
    assert (found["prompt"], found["token"]) == (alone["prompt"], alone["token"])
    assert found["resid_post.1[2]"] == alone["value"]
    assert found["z.1 3"] == acts["z.1"].columns()["value 3"]


def test_without_pandas_a_sentence_says_so_and_an_old_name_warns(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = engine.head_scores([tables.LINE])
    with pytest.warns(FutureWarning, match=r"scores\.top\(count, kind\)"):
        assert scores.best("previous", 2) == scores.top(2, "previous")
    losses = engine.loss([LINE])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pip install pandas"):
        losses.to_pandas()


TOPS = {
    dj.Grid: lambda grid: grid.values - grid.unedited,
    Lens: lambda lens: lens.values[:, 1],
    Effect: lambda effect: effect.values[1:, 2] - effect.values[1:, 1],
    Attribution: lambda parts: parts.values[[name is not None for name in parts.columns()["layer"]]],
    dj.HeadScores: lambda scores: scores.induction,
    dj.TokenMeasures: lambda read: read.of(read.by),
    dj.FeaturePage: lambda page: np.array([one.value for one in page.examples]),
    dj.HeadPage: lambda page: np.array([one.summed for one in page.reply.summed]),
    dj.ScoreParts: lambda parts: np.array([one.value for at in ("key", "query") for one in parts.side(at).parts]),
    dj.TextLens: lambda lens: lens.of("top 1"),
    Watched: lambda watched: watched.compared_values,
    dj.Circuit: lambda circuit: np.array(circuit.scores),
    dj.AttributionGraph: None,  # by the influence of its edges
}


@pytest.mark.parametrize("kind", [kind for kind in tables.TABLES if kind is dj.Grid or issubclass(kind, Result)])
def test_the_top_of_any_reading_are_its_largest_numbers_by_size_with_their_places(
    engine: RemoteEngine, tmp_path: Path, kind: Any
) -> None:
    reading = tables.TABLES[kind](engine, tmp_path)
    found = reading.top(4)
    assert reading.top(-1) == reading.top(0) == []
    assert reading.top(10**9)[: len(found)] == found
    assert all(len(one) >= 2 and None not in one for one in found)
    with pytest.raises(UsageError, match="count"):
        reading.top("many")
    numbers = TOPS.get(kind, lambda reading: reading.values)
    if numbers is not None:
        values = np.asarray(numbers(reading), dtype=np.float64).reshape(-1)
        sizes = np.sort(np.abs(values[~np.isnan(values)]))[::-1]
        assert [abs(one[-1]) for one in found] == sizes[:4].tolist()
        assert len(reading.top(10**9)) == len(sizes)


def test_the_places_of_the_top_are_those_of_the_numbers(engine: RemoteEngine) -> None:
    losses = engine.loss([LINE, [3, 4]])
    assert all(losses[prompt][at - 1] == loss for prompt, at, loss in losses.top())
    session = tables.stopped(engine)
    patterns = session.patterns()
    assert all(patterns.values[layer, head, query, key] == x for layer, head, query, key, x in patterns.top(9))
    lens = session.lens(3)
    rows = {row.position: {one.text: one.probability for one in row.top} for row in lens.rows}
    assert all(rows[position][text] == probability for position, text, probability in lens.top(7))
    grid = dj.sweep(engine, **tables.LINES, site="z", over="layer,head")
    assert all(grid.values[layer, head] - grid.unedited == change for layer, head, change in grid.top())


def test_the_top_of_a_grid_of_pairs_and_of_several_metrics(engine: RemoteEngine) -> None:
    grid = dj.sweep(engine, **{**tables.PAIRS, "metric": [tables.METRIC, "logit(5)"]})
    changes = (grid.values - grid.unedited[:, :, None]).mean(axis=0)
    found = grid.top(100)
    assert len(found) == changes.size
    assert all(changes[grid.metrics.index(metric), grid.layers.index(at)] == x for metric, at, x in found)
