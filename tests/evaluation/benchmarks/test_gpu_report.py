"""The report that is made of the files of `make gpu`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from djinn_evaluation import machine
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.gpu import course
from djinn_evaluation.benchmarks.gpu.course import report
from djinn_evaluation.benchmarks.gpu.steps import STEPS, step_of
from djinn_evaluation.benchmarks.harness import Result


def figure(**changes: Any) -> dict[str, Any]:
    spread = {"median": 0.9, "low": 0.9, "high": 0.9, "count": 1}
    bar = {"sense": "at least", "value": 0.97}
    return {"name": "f", "unit": "x", "value": spread, "bar": bar, "met": False, "not_run": None, **changes}


def test_the_report_says_of_each_bar_met_missed_or_why_not_measured(tmp_path: Path) -> None:
    figures = [figure(), figure(met=True), figure(value=None, met=None, not_run="no tool"), figure(bar=None, met=None)]
    machine = {"device": "cuda:0", "cpu": "a cpu", "versions": {"torch": "2.13"}}
    written: dict[str, Any] = {"machine": machine, "settings": {"card": {"driver": "580"}}, "figures": figures}
    (tmp_path / "generation.json").write_text(json.dumps(written))
    told = report(tmp_path, {})
    assert "| generation | f: at least 0.97 x | missed by 0.07 x: 0.9 |" in told
    assert "| generation | f: at least 0.97 x | met: 0.9 |" in told
    assert "| generation | f: at least 0.97 x | not measured: no tool |" in told
    assert f"1 met, 1 missed, {1 + len(STEPS) - 1} not measured, 0 so far." in told
    assert "usual size" not in told
    written["settings"]["size"] = 1e-4
    (tmp_path / "generation.json").write_text(json.dumps(written))
    assert "At 0.0001 of the usual size and in few rounds" in report(tmp_path, {})
    written["partial"] = "3 of 5 rounds"
    (tmp_path / "generation.json").write_text(json.dumps(written))
    told = report(tmp_path, {"generation": "it took longer than 480 s"})
    assert "| generation | f: at least 0.97 x | so far met: 0.9 |" in told
    assert "| generation | the rest, after 3 of 5 rounds | not measured: it took longer than 480 s |" in told
    assert step_of("generation") in course.missing(tmp_path, {})


def test_the_file_of_a_cut_turn_says_that_it_is_partial_and_a_whole_one_takes_its_place(tmp_path: Path) -> None:
    found = Result(benchmark="fork", settings={}, figures=())
    here = machine.describe(threads=1, device="cpu")
    path = harness.write(found, here, tmp_path, partial="half")
    assert (json.loads(path.read_text())["partial"], harness.whole(path)) == ("half", False)
    harness.write(found, here, tmp_path)
    assert harness.whole(path)
    assert sorted(tmp_path.iterdir()) == [path]
