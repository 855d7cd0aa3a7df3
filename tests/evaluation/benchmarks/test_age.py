"""Results that are older than the code that makes them are told; they fail nothing."""

from __future__ import annotations

import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation import machine
from djinn_evaluation.benchmarks.harness import aged
from djinn_evaluation.machine import describe


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
