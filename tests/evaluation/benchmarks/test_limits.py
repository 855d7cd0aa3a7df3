"""Limits of plain computing, collections of rows, the age of results, and tests that were mended."""

from __future__ import annotations

import json
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from djinn_evaluation import CHECKOUT, machine
from djinn_evaluation.benchmarks import generating, limits
from djinn_evaluation.benchmarks.gpu import mended
from djinn_evaluation.benchmarks.gpu.__main__ import SIZE_WITHOUT_A_GPU
from djinn_evaluation.benchmarks.gpu.steps import TESTS, Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Disagreement, Setting, Shape, aged
from djinn_evaluation.benchmarks.patching import CASES, LATE, POSITIONS, Case
from djinn_evaluation.machine import describe
from djinn_jupyter.methods.sweep.engine.sweep import SweepJob
from djinn_jupyter.methods.sweep.request import Sweep
from tests.engine.desk import desk_of, tokens

LAYERS, HEADS = 4, 4


@pytest.mark.parametrize("first", [0, LATE])
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.site)
def test_a_sweep_runs_the_rows_that_are_counted(case: Case, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    whole = SweepJob._run_chunk

    def counted(self: Any, room: Any, front: Any, lines: Any, found: Any) -> Any:
        yield from whole(self, room, front, lines, found)
        ran.append(front.rows_run)

    monkeypatch.setattr(SweepJob, "_run_chunk", counted)
    desk, clean = desk_of("gpt2", layers=LAYERS), tuple(range(20, 20 + POSITIONS))
    corrupted = (*clean[:first], *tokens(POSITIONS, seed=2)[first:])
    desk.open("a")
    asked: Any = {"site": case.site, "over": case.over, "metrics": ("logit(3)",)}
    desk.ask(Sweep(session="a", clean=clean, corrupted=corrupted, **asked))
    expected = limits.lines(case, first, Shape(layers=LAYERS, heads=HEADS))
    assert ran[-1] == sum(count * (LAYERS - joined) * rows for count, joined, rows in expected)
    desk.close_all()


def test_multiplications_are_those_of_the_weights() -> None:
    residuals, heads, _ = CASES
    shape = Shape(layers=2, width=10, heads=3, vocabulary=100)
    rows = range(1, POSITIONS + 1)  # of the lines that join before the last layer, whose last rows alone pass it
    assert limits.ours(residuals, 0, shape) == sum(3 * (n - 1) + 12 for n in rows) * 100
    assert limits.ours(heads, 0, shape) == 3 * (POSITIONS * 9 + (POSITIONS - 1) * 3 + 12 + 9) * 100
    assert limits.theirs(residuals, shape) == 2 * POSITIONS * POSITIONS * (2 * 12 * 100 + 10 * 100)


def test_a_cell_alone_runs_all_rows_from_its_layer_on() -> None:
    residuals, heads, _ = CASES
    shape = Shape(layers=2, width=10, heads=3, vocabulary=100)
    assert limits.alone(residuals, 0, shape) == POSITIONS * 12 * 100  # of the layer after the first
    assert limits.alone(heads, 0, shape) == POSITIONS * (12 + 9 + 9) / 2 * 100


def test_a_collection_fails_when_a_row_is_another_prompts() -> None:
    rows = np.eye(3, dtype=np.float32)
    generating.require_near(rows, rows * (1 + 1e-5))
    with pytest.raises(Disagreement, match="Row 0 of the collection"):
        generating.require_near(rows[[1, 0, 2]], rows)
    with pytest.raises(Disagreement, match="Row 2"):
        generating.require_near(rows * [[1], [1], [np.nan]], rows)


def test_figures_older_than_their_code_are_told() -> None:
    """This never fails: to measure anew is a decision, and a merge is no reason for it."""
    told = list(aged())
    if told:
        warnings.warn("\n".join(["Figures older than the code that makes them:", *told]), stacklevel=1)


def test_a_later_commit_of_the_product_or_of_its_own_module_ages_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def committed(path: str, when: str) -> str:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(when)
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for arguments in (["add", "--all"], [*who, "commit", "--quiet", "--message", path]):
            environment = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when, "HOME": str(tmp_path)}
            subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, env=environment)
        return str(machine.present_code()["commit"])

    def told(**fields: Any) -> list[str]:
        results = tmp_path / "results"
        (results / "benchmarks").mkdir(parents=True, exist_ok=True)
        (results / "benchmarks" / "stop.json").write_text(json.dumps(fields))
        return list(aged(results))

    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    own = "evaluation/djinn_evaluation/benchmarks/"
    committed("djinn_jupyter/engine.py", "2026-01-01T00:00:00+00:00")
    first = committed(f"{own}stops.py", "2026-02-01T00:00:00+00:00")
    old, new = {"machine": {"begun": "2026-01-15T00:00:00+00:00"}}, {"machine": {"versions": {"commit": first}}}
    assert told(**old) == [
        "benchmarks/stop.json: made on 2026-01-15, by a commit that it does not name; its modules have 1 later commits."
    ]
    assert told(**new) == []
    committed(f"{own}patching.py", "2026-03-01T00:00:00+00:00")
    assert told(**new) == [], "another benchmark"
    committed("djinn_jupyter/engine.py", "2026-04-01T00:00:00+00:00")
    elsewhere = {"machine": {"versions": {"commit": "f" * 40}, "begun": "2026-03-15T00:00:00+00:00"}}
    assert told(**elsewhere) == [
        "benchmarks/stop.json: made on 2026-03-15, by a commit (ffffffff) that this history does not have; its modules "
        "have 1 later commits."
    ]
    assert told(**new) == [f"benchmarks/stop.json: made at {first[:8]}; its modules have 1 later commits."]


def test_a_benchmark_names_the_code_that_it_measures() -> None:
    versions, code = describe(threads=1, device="cpu").versions, machine.present_code()
    assert {name: versions[name] for name in ("commit", "clean", "changes")} == {
        n: code[n] for n in code if n != "versions"
    }


FAILING = """
import pytest


@pytest.mark.parametrize("n", ["a", "b c"])
def test_passes(n):
    pass


def test_fails():
    assert False


@pytest.fixture
def broken():
    yield
    raise RuntimeError("in its end")


def test_breaks(broken):
    pass


def test_passes_too():
    pass
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A checkout whose tests failed on a card, with one that fails still and one that breaks at its end."""
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  alone\n")
    (tmp_path / "mended.txt").write_text("# Why.\n\ntest_it.py\n")
    monkeypatch.setattr(mended, "CHECKOUT", tmp_path)
    monkeypatch.setattr(mended, "LIST", tmp_path / "mended.txt")
    return Setting(quick=True, threads=1, home=tmp_path, results=tmp_path, factor=SIZE_WITHOUT_A_GPU)


@pytest.mark.processes
def test_each_mended_test_has_an_outcome_and_one_that_fails_hides_no_other(failing: Setting) -> None:
    kept: list[str] = []
    found = mended.run_mended(replace(failing, so_far=lambda figures, how_far: kept.append(how_far)))
    assert kept[-1] == "5 tests"
    assert found.settings["not_passed"] == ["test_it.py::test_fails", "test_it.py::test_breaks"]
    assert found.settings["outcomes"] == {"PASSED": 3, "FAILED": 1, "ERROR": 1}
    (figure,) = found.figures
    assert (figure.value.median, figure.met) == (0.6, False)


@pytest.mark.processes
def test_mended_tests_that_were_cut_go_on_where_they_were(failing: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mended, "START", 1e9)
        with pytest.raises(Unfinished, match="0 tests"):
            mended.run_mended(failing)
    kept = Kept.of("mended", failing, TESTS)
    for name in ("test_passes[a]", "test_passes[b c]", "test_fails"):
        kept.add(f"test_it.py::{name}", "PASSED")
    assert mended.run_mended(failing).settings["outcomes"] == {"PASSED": 4, "ERROR": 1}


def test_the_list_of_mended_tests_names_tests_that_are_there() -> None:
    names = mended.selected(mended.LIST.read_text())
    assert len(names) == len({*names}) > 30
    for name in names:
        file, _, test = name.partition("::")
        source = (CHECKOUT / file).read_text()
        assert f"def {test.partition('[')[0]}(" in source if test else "def test_" in source, name
