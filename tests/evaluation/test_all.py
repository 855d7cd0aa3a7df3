"""`djinn experiment all`: each experiment into its own folder, the others after one that fails or is refused.

A run that was broken off goes on, and the claims are judged."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation.commands import experiment
from djinn_evaluation.commands.experiment import AGAIN, RUNS, UNDECIDED, steps_of
from djinn_evaluation.course import Undecided
from djinn_jupyter.errors import ModelDoesNotFit

Ran = list[tuple[Path, Any]]
ALL = [step.name for step in steps_of(experiment.OFFERS) if "small" in step.profiles]
REFUSED = [step.name for step in AGAIN if step.refused]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The folder and the file of each experiment that was run; resume-latency fails, and pressure finds no room, but
    fails where it has to."""
    found: Ran = []

    def runs(name: str) -> Any:
        def run(options: argparse.Namespace, file: Any) -> list[str]:
            found.append((options.output_dir, file if hasattr(file, "model") else options.model))
            if options.output_dir.name == "pressure":
                raise ModelDoesNotFit("It does not fit.")
            return ["so"] if name == "resume-latency" or options.output_dir.name in REFUSED else []

        return run

    offers = tuple(replace(offer, run=runs(offer.name)) for offer in experiment.OFFERS)
    monkeypatch.setattr(experiment, "OFFERS", offers)
    return found


def everything(folder: Path, *more: str) -> int:
    return cli.main(["experiment", "all", "--profile", "small", "--output-dir", str(folder), *more])


def test_every_experiment_runs_and_the_worst_verdict_counts(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert everything(tmp_path, "--model", "/a/b") == 1
    assert [folder.name for folder, _ in ran] == ALL
    models = [getattr(file, "model", file) for folder, file in ran if folder.name != "whitebox_gpt2"]
    assert [getattr(model, "name", model) for model in models] == ["/a/b"] * (len(ran) - 1)
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[-len(ALL) :])
    assert told["pressure"] == "ERROR It does not fit."
    assert told["resume_latency"] == "FAIL"
    assert {told[name] for name in told.keys() - {"pressure", "resume_latency"}} == {"PASS"}


def test_a_verdict_left_open_is_neither_a_pass_nor_a_failure(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_(options: argparse.Namespace, file: Any) -> list[str]:
        raise Undecided("The windows cannot be judged here.")

    offers = tuple(replace(offer, run=open_) if offer.name == "validation" else offer for offer in experiment.OFFERS)
    monkeypatch.setattr(experiment, "OFFERS", offers)
    alone = cli.main(["experiment", "validation", "--profile", "small", "--output-dir", str(tmp_path / "alone")])
    assert alone == UNDECIDED
    assert capsys.readouterr().out == "UNDECIDED The windows cannot be judged here.\n"
    assert everything(tmp_path / "two", "--only", "whitebox", "--only", "validation") == UNDECIDED
    found = json.loads((tmp_path / "two" / RUNS).read_text())["runs"]
    assert {name: run["verdict"] for name, run in found.items()} == {"whitebox": "PASS", "validation": "UNDECIDED"}
    assert (tmp_path / "two" / "report.md").read_text().startswith("# claims: UNDECIDED")
    assert everything(tmp_path / "all") == 1, "others fail"


def test_a_key_that_is_set_is_one_of_every_run_and_of_its_results(ran: Ran, tmp_path: Path) -> None:
    """Runs with other keys are no part of those that were broken off."""
    key = "experiment.num_trials=7"
    everything(tmp_path, "--only", "whitebox", "--only", "whitebox_again", "--set", key)
    assert [file.experiment.num_trials for _, file in ran] == [7, 7]
    assert json.loads((tmp_path / RUNS).read_text())["settings"] == [key]
    everything(tmp_path, "--only", "whitebox")
    assert json.loads((tmp_path / RUNS).read_text())["runs"].keys() == {"whitebox"}


def test_the_claims_are_judged_on_what_ran(ran: Ran, tmp_path: Path) -> None:
    assert everything(tmp_path) == 1
    found = json.loads((tmp_path / "claims.json").read_text())
    assert len(found["claims"]) == 29
    assert found["machine"]["cores"]
    assert found["runs"]["pressure_few"]["verdict"] == "PASS"
    for report in ("report.html", "report.md"):
        assert "semantic scheduling" in (tmp_path / report).read_text()
    assert max(map(len, (tmp_path / "report.md").read_text().splitlines())) <= 80


def test_a_run_that_was_broken_off_goes_on_where_it_was(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had ended is not run again, what was refused is; after the end all begins anew."""
    whole = experiment._run_one

    def broken_off(offer: Any, arguments: list[str]) -> int:
        if str(tmp_path / "checkpoint_cost") in arguments:
            raise KeyboardInterrupt
        return whole(offer, arguments)

    with monkeypatch.context() as patch:
        patch.setattr("djinn_evaluation.commands.experiment._run_one", broken_off)
        assert everything(tmp_path) == 130
    assert not json.loads((tmp_path / RUNS).read_text())["complete"]
    ran.clear()
    assert everything(tmp_path) == 1
    begun = [name for name in ALL if name not in ("whitebox", "resume_latency")]
    assert [folder.name for folder, _ in ran] == begun
    ran.clear()
    everything(tmp_path)
    assert [folder.name for folder, _ in ran] == ALL


def test_the_second_run_of_whitebox_has_the_pause_alone(ran: Ran, tmp_path: Path) -> None:
    everything(tmp_path)
    first, again = ([file for folder, file in ran if folder.name == name] for name in ("whitebox", "whitebox_again"))
    parts = [(file.experiment.breakpoints.enabled, file.experiment.concurrent_demo) for file in (*first, *again)]
    assert [enabled for enabled, _ in parts] == [True, False]
    assert [pause.enabled for _, pause in parts] == [True, True]
    assert [pause.until_full_gb is None for _, pause in parts] == [False, True]


@pytest.mark.parametrize(("profile", "enabled"), [("small", [True, False]), ("gpu", [True, True])])
def test_the_flatline_runs_twice_where_a_claim_can_be_decided_by_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, enabled: list[bool]
) -> None:
    ran = list[Any]()
    offers = tuple(replace(offer, run=lambda options, file: ran.append(file) or []) for offer in experiment.OFFERS)
    monkeypatch.setattr(experiment, "OFFERS", offers)
    only = [f"--only={name}" for name in ("validation", "validation_again")]
    cli.main(["experiment", "all", "--profile", profile, "--output-dir", str(tmp_path), *only])
    assert [file.pcie_flatline.enabled for file in ran] == enabled
    assert all(file.agent_sleep_resume.enabled for file in ran)


def test_a_run_that_is_named_stands_beside_those_that_had_ended(ran: Ran, tmp_path: Path) -> None:
    """Their verdicts count, and the whole is complete as before: the next one begins anew."""
    everything(tmp_path)
    before = json.loads((tmp_path / RUNS).read_text())
    assert everything(tmp_path, "--only", "whitebox") == 1, "another one fails"
    after = json.loads((tmp_path / RUNS).read_text())
    assert after["runs"].keys() == before["runs"].keys() - {"pressure"}, "what was refused is not kept"
    ran.clear()
    everything(tmp_path)
    assert [folder.name for folder, _ in ran] == ["pressure"], "and is what is left to do"


def test_another_profile_or_model_begins_anew(ran: Ran, tmp_path: Path) -> None:
    """A run that is named runs again."""
    for count, model in ((1, ()), (2, ()), (3, ("--model", "/a/b"))):
        assert everything(tmp_path, "--only", "whitebox", *model) == 0
        assert len(ran) == count
