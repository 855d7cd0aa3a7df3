"""Pairs of lines: metrics and answers of each, and the statistics over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import SweepEnded, UsageError
from djinn_jupyter.methods.sweep.api.grid import statistics_of

CLEAN = [(9, 8, 7, 21, 22), (5, 6, 7, 11, 12), (3, 4, 7, 61, 62)]
CORRUPTED = [(9, 8, 7, 31, 22), (5, 6, 7, 41, 12), (3, 4, 7, 51, 62)]
METRICS = ["logit(17) - logit(42)", "logit(5)", "prob(9)"]
ANSWERS: list[Any] = [[17, 42], 5, [9, 3]]
OF_ANSWERS = ["logit(17) - logit(42)", "logit(5)", "logit(9) - logit(3)"]


def sweep(engine: RemoteEngine, **given: Any) -> Any:
    return dj.sweep(engine, site="resid_post", over="layer,position", mode="exact", **given)


def attribute(engine: RemoteEngine, **given: Any) -> Any:
    return dj.attribute(engine, site="z", over="layer,head", **given)


def path(engine: RemoteEngine, **given: Any) -> Any:
    return dj.path(engine, "z -> logits", mode="exact", **given)


VERBS: tuple[Callable[..., Any], ...] = (sweep, attribute, path, dj.edges)
each_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)


def objects(**fields: list[Any]) -> list[dict[str, Any]]:
    rows = zip(CLEAN, CORRUPTED, *fields.values(), strict=True)
    return [dict(zip(("clean", "corrupted", *fields), row, strict=True)) for row in rows]


@each_verb
def test_each_pair_has_what_it_has_alone_under_its_metric(engine: RemoteEngine, verb: Callable[..., Any]) -> None:
    found = verb(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS))
    alone = [
        verb(engine, clean=clean, corrupted=corrupted, metric=metric).values
        for clean, corrupted, metric in zip(CLEAN, CORRUPTED, METRICS, strict=True)
    ]
    assert np.array_equal(getattr(found, "by_pair", found.values), np.stack(alone), equal_nan=True)
    assert found.metric == "logit(17) - logit(42) and each pair's own"
    assert dj.reproduce(engine, found).same


@each_verb
def test_answers_are_the_same_metrics_from_a_list_and_from_files(
    engine: RemoteEngine, verb: Callable[..., Any], tmp_path: Path
) -> None:
    expected = verb(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(OF_ANSWERS)).values
    records = objects(answers=ANSWERS)
    (tmp_path / "a.json").write_text(json.dumps(records))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    for pairs in (records, tmp_path / "a.json", tmp_path / "a.jsonl", objects(metric=OF_ANSWERS)):
        assert np.array_equal(verb(engine, pairs=pairs).values, expected, equal_nan=True)
    assert np.array_equal(
        verb(engine, pairs=records, metric="logit(5)").values,
        verb(engine, clean=CLEAN, corrupted=CORRUPTED, metric="logit(5)").values,
        equal_nan=True,
    ), "a metric that is given is that of all pairs"


def test_statistics_and_tables_are_of_each_pairs_own(engine: RemoteEngine, tmp_path: Path) -> None:
    grid = sweep(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS))
    assert (grid.over, grid.per_pair) == (("pair", "layer", "position"), tuple(METRICS))
    changes = grid.values - grid.corrupted[:, None, None]
    assert np.array_equal(grid.statistics().change, changes.mean(axis=0))
    table = grid.columns()
    assert [METRICS[pair] for pair in table["pair"]] == table["metric"]
    assert grid.recipe["metric"] == dj.per_pair(METRICS)
    again = dj.Grid.read(grid.save(tmp_path / "a.grid.djinn"))
    assert (again.per_pair, again.metric) == (grid.per_pair, grid.metric)
    assert "pair's own" in repr(again)


def test_the_strongest_cells_are_confirmed_under_each_pairs_own(engine: RemoteEngine) -> None:
    found = attribute(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS), top=2)
    for number, metric in enumerate(METRICS):
        exact = dj.sweep(
            engine,
            clean=CLEAN[number],
            corrupted=CORRUPTED[number],
            site="z",
            over="layer,head",
            metric=metric,
            mode="exact",
        )
        at = ~np.isnan(found.confirmed[number])
        assert at.sum() == 2
        assert np.array_equal(found.confirmed[number][at], (exact.values - exact.corrupted)[at])


def test_a_sweep_that_ended_goes_on_with_each_pairs_own(engine: RemoteEngine) -> None:
    calls = 0

    def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    whole = sweep(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS))
    with pytest.raises(dj.WorkInterrupted) as broken:
        sweep(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS), on_progress=fail)
    part: Any = broken.value.kept
    assert not part.is_whole
    rest = sweep(engine, clean=CLEAN, corrupted=CORRUPTED, metric=dj.per_pair(METRICS), so_far=part)
    assert np.array_equal(rest.values, whole.values)


@each_verb
def test_what_belongs_to_no_pair_is_refused(engine: RemoteEngine, verb: Callable[..., Any]) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metric": dj.per_pair(METRICS[:2])}, "here are 2 for 3 pairs"),
        ({}, "Give a metric"),
    )
    for given, why in wrong:
        with pytest.raises((UsageError, SweepEnded), match=why):
            verb(engine, clean=CLEAN, corrupted=CORRUPTED, **given)
    with pytest.raises(UsageError, match=r"dj\.per_pair has a metric for each pair|here are 3 for 1 pairs"):
        verb(engine, clean=CLEAN[0], corrupted=CORRUPTED[0], metric=dj.per_pair(METRICS))


def test_what_is_no_answer_is_refused_by_its_place(engine: RemoteEngine) -> None:
    for answers in [[1, 2, 3], [], True, {"right": 1}, [""], [[1]], 1.5, [True, 2]]:
        with pytest.raises(UsageError, match=r"pair 1 has a metric .* or answers"):
            sweep(engine, pairs=objects(answers=[1, answers, 2]))
    with pytest.raises(UsageError, match="2 of 3 pairs have a metric or answers; give all of them, or none"):
        sweep(engine, pairs=objects(answers=[1, None, 2]))
    assert sweep(engine, clean=CLEAN, corrupted=CORRUPTED, metric=METRICS).over[:2] == ("pair", "metric")
    with pytest.raises(UsageError, match=r"write metric=dj.per_pair\(\[\.\.\.\]\)"):
        dj.edges(engine, clean=CLEAN, corrupted=CORRUPTED, metric=METRICS)


DARWIN = np.array([6.1, -8.4, 1.0, 2.0, 0.7, 2.9, 3.5, 5.1, 1.8, 3.6, 7.0, 3.0, 9.3, 7.5, -6.0])  # Fisher 1935, inches


def told(values: np.ndarray, corrupted: np.ndarray | None = None, seed: int = 0):
    return statistics_of(values, np.zeros(len(values)) if corrupted is None else corrupted, 0.95, 9999, seed)


def test_the_test_of_signs_is_that_of_fisher() -> None:
    found = told(DARWIN[:, None])
    assert found.change == pytest.approx(2.6067, abs=1e-4)
    assert found.standard_error == pytest.approx(4.7128 / np.sqrt(15), abs=1e-3)
    assert found.p == pytest.approx(0.0528, abs=0.008)  # of all 2^15 signs; here of 9,999 drawn ones
    assert 0 < found.low[0] < 1 < 4 < found.high[0] < 5
    found = told(np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert found.p == 2 / 16
    assert found.pairs == 4
    found = told(np.random.default_rng(5).normal(size=(10, 400)))
    assert np.mean(found.p < 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean((found.low < 0) & (found.high > 0)) == pytest.approx(0.9, abs=0.06)  # of ten pairs, a little short
    values = np.random.default_rng(3).normal(size=(20, 5))
    one, same, other = told(values, seed=1), told(values, seed=1), told(values, seed=2)
    assert np.array_equal(one.low, same.low)
    assert np.array_equal(one.p, same.p)
    assert not np.array_equal(one.low, other.low)


def test_cells_that_a_pair_does_not_have_are_judged_by_the_others() -> None:
    corrupted = np.array([10.0, -10.0, 3.0])
    found = told(corrupted[:, None, None] + np.array([0.0, 1.0])[None, None, :], corrupted)
    assert found.change.tolist() == [[0.0, 1.0]]
    assert found.standard_error.tolist() == [[0.0, 0.0]]
    assert found.p.tolist() == [[1.0, 0.25]]
    assert found.mean.tolist() == [[1.0, 2.0]]
    values = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    found = told(values)
    assert found.pairs.tolist() == [3, 2, 1]
    assert found.change[:2].tolist() == [2.0, 1.5]
    assert np.isnan([found.change[2], found.p[2], found.low[2], found.standard_error[2]]).all()
    values = np.random.default_rng(1).normal(size=(5, 2))
    found = told(np.vstack([values, [1.0, np.nan]])[1:])
    assert found.pairs.tolist() == [5, 4]
    assert np.isnan(found.low).tolist() == np.isnan(found.high).tolist() == [False, True]
    assert not np.isnan([found.p, found.change, found.standard_error]).any()
    with pytest.raises(UsageError, match="two or more pairs"):
        told(np.ones((1, 3)))
    with pytest.raises(UsageError, match="a confidence between 0 and 1"):
        statistics_of(np.ones((2, 3)), np.zeros(2), 95.0, 9999, 0)
