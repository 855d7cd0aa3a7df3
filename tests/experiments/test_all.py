"""`djinn experiment all`: each experiment into its own folder, the others after one that fails or is refused."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter.cli.main as cli
from djinn_jupyter.cli import experiment
from djinn_jupyter.errors import ModelDoesNotFit

Ran = list[tuple[Path, Any]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The folder and the file of each experiment that was run; resume-latency fails, and pressure finds no room."""
    found: Ran = []

    def runs(name: str) -> Any:
        def run(options: argparse.Namespace, file: Any) -> list[str]:
            found.append((options.output_dir, file if hasattr(file, "model") else options.model))
            if name == "pressure":
                raise ModelDoesNotFit("It does not fit.")
            return ["too slow"] if name == "resume-latency" else []

        return run

    offers = tuple(replace(offer, run=runs(offer.name)) for offer in experiment.OFFERS)
    monkeypatch.setattr(experiment, "OFFERS", offers)
    return found


def test_every_experiment_runs_and_the_worst_verdict_counts(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["experiment", "all", "--profile", "gpu", "--model", "/a/b", "--output-dir", str(tmp_path)]) == 1
    assert [folder.name for folder, _ in ran] == [o.name.replace("-", "_") for o in experiment.OFFERS]
    models = [getattr(file, "model", file) for _, file in ran]
    assert [getattr(model, "name", model) for model in models] == ["/a/b"] * len(ran)
    told = capsys.readouterr().out.splitlines()[-5:]
    assert [line.split(maxsplit=1)[1] for line in told] == ["PASS", "ERROR It does not fit.", "FAIL", "PASS", "PASS"]


def test_one_of_all(ran: Ran, tmp_path: Path) -> None:
    assert (
        cli.main(["experiment", "all", "--profile", "small", "--only", "whitebox", "--output-dir", str(tmp_path)]) == 0
    )
    assert len(ran) == 1
