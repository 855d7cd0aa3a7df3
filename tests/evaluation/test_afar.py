"""Experiments on an engine of another machine, as far as files go: it has a registry and user data of its own, so that
it is found by its address and known by keys alone. What is not seen from here is not measured, and never passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation.claims.judging import Results
from djinn_evaluation.claims.table import CLAIMS
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.serving import OTHER_BITS, PROCESS_UNSEEN, SIDES_APART
from djinn_evaluation.timing import checkpoint_cost
from djinn_evaluation.whitebox.trials import Reference
from djinn_jupyter.link import starting
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.wire.keys import KeyFolder
from tests.engines import end_all
from tests.process.nursery import spawn

pytestmark = pytest.mark.processes
COST = ("repeat=1", "neighbour_tokens=24", "stop_interval_seconds=0.05")
SHORT = ("experiment.num_trials=1", "experiment.overhead_pairs=1", "experiment.breakpoints.layers=[4]")


class Box:
    """The other machine: its address, and its user's folder of keys."""

    def __init__(self, address: str, keys: KeyFolder) -> None:
        self.address, self.keys = address, keys


def be_on(machine: Path, patch: pytest.MonkeyPatch) -> KeyFolder:
    patch.setenv("JUPYTER_RUNTIME_DIR", str(machine / "r"))
    patch.setenv("JUPYTER_DATA_DIR", str(machine / "d"))
    return own.key_folder()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The machine with the engine; the tests are on the laptop of ada, whom it admits."""
    home = tmp_path_factory.mktemp("m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "_spawn", spawn)
        laptop = be_on(home / "laptop", patch)
        own.draw_own("ada")
        there = be_on(home / "box", patch)
        there.allow(laptop.own("ada").public, "ada")
        engine = dj.load("demo", listen="tcp://127.0.0.1:*", page_positions=16, threads=1, device="cpu")
        laptop.trust("127.0.0.1", own.of_engines_here().public)
        be_on(home / "laptop", patch)
        yield Box(engine.entry.listens, there)
        be_on(home / "box", patch)
        end_all()


def run(box: Box, folder: Path, name: str, *settings: str, flags: tuple[str, ...] = ()) -> int:
    chosen = [word for setting in settings for word in ("--set", setting)]
    there = ["--server", box.address, "--output-dir", str(folder)]
    return cli.main(["experiment", name, "--profile", "small", *there, *chosen, *flags])


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def test_what_is_seen_over_the_line_is_measured_and_the_rest_leaves_the_run_undecided(box: Box, tmp_path: Path) -> None:
    assert dj.engines() == ()
    assert run(box, tmp_path, "checkpoint-cost", *COST) == UNDECIDED
    found, report = read(tmp_path, checkpoint_cost.FILE), (tmp_path / "report.md").read_text()
    assert found["status"] == "undecided"
    assert found["neighbour_tokens_per_s"]["alone"] > 0
    assert found["stops"] > 0 < found["copy_ms"]
    assert found["link"] is None
    assert "the link of its machine is not seen from here" in found["reasons"]["link"]
    assert found["reached_over_a_line"]["round_trip_ms"] > 0
    assert report.startswith("# checkpoint-cost: UNDECIDED")
    assert "The engine is reached over a line: its times have the line in them" in " ".join(report.split())
    assert not dj.connect(box.address).sessions()
    secret = own.key_folder().own("ada").secret
    assert secret.hex() not in report
    assert not any(secret in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_whitebox_compares_bits_over_the_line_and_leaves_its_times_to_no_claim(box: Box, tmp_path: Path) -> None:
    folder = tmp_path / "whitebox"
    assert run(box, folder, "whitebox", *SHORT, flags=("--skip-pytorch", "--skip-vllm")) == UNDECIDED
    found = read(folder, "djinn_breakpoint_results.json")
    assert found["status"] == "undecided"
    assert all(entry["bitwise_equal"] for entry in found["token_accuracy"]["entries"])
    assert found["os_overhead"]["without_core"] is None
    assert found["reasons"]["os_overhead.without_core"] == PROCESS_UNSEEN.reason
    assert found["slow_line"] is None
    assert found["kv_bytes_on_wire"] == 0 < found["memory_breakdown"]["kv_cache_per_session_gb"]
    judged = {claim.number: claim.judged(Results(folder=tmp_path)) for claim in CLAIMS}
    assert judged[10].verdict == "holds at this size"  # what crossed the wire is counted at this end of it
    for number in (5, 6, 8):
        assert (judged[number].verdict, judged[number].reason) == (
            "undecided",
            "its times have the line to the engine in them",
        )
    assert judged[28].verdict == "undecided"


def test_bits_that_another_machine_makes_otherwise_are_no_comparison(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reference, "equals", lambda reference, done: False)
    assert run(box, tmp_path, "whitebox", *SHORT, flags=("--skip-pytorch", "--skip-vllm")) == UNDECIDED
    found = read(tmp_path, "djinn_breakpoint_results.json")
    for part in ("token_accuracy", "activation_steering", "concurrent_demo"):
        assert (found[part], found["reasons"][part]) == (None, OTHER_BITS.reason)
    assert found["os_overhead"]["pairs_ms"]


def test_sides_that_would_compute_here_are_no_comparison(box: Box, tmp_path: Path) -> None:
    assert run(box, tmp_path / "s", "streaming") == UNDECIDED
    found = read(tmp_path / "s", "streaming_results.json")
    assert (found["status"], found["models"], found["reasons"]["models"]) == ("undecided", None, SIDES_APART.reason)
    assert run(box, tmp_path / "v", "validation", flags=("--only", "pcie_flatline")) == UNDECIDED
    found = read(tmp_path / "v", "pcie_flatline_results.json")
    assert (found["status"], found["passed"], found["bandwidth_mbps"]) == ("undecided", None, None)


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("pressure", (), "has other limits than this run needs: serve it with --device-memory 194347270."),
        ("checkpoint-cost", ("--model", "gpt2"), "not gpt2"),
        ("checkpoint-cost", ("--set", "dtype=bfloat16"), "not demo (dtype bfloat16)"),
        ("checkpoint-cost", ("--key", "eve"), "You have no key eve"),
    ],
)
def test_an_engine_that_is_not_the_run_s_is_refused_in_one_sentence(
    name: str, more: tuple[str, ...], sentence: str, box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(box, tmp_path, name, flags=more) == 1
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_a_test_that_this_engine_cannot_serve_is_not_run(box: Box, tmp_path: Path) -> None:
    assert run(box, tmp_path, "validation", flags=("--only", "agent_sleep_resume")) == UNDECIDED
    found = read(tmp_path, "agent_sleep_resume_results.json")
    assert (found["status"], found["passed"]) == ("not_run", None)
    assert "serve it with --host-memory 107374182 --idle-swap-seconds 1.0." in found["reasons"]["passed"]


def test_of_all_experiments_those_that_this_engine_cannot_serve_are_not_run(box: Box, tmp_path: Path) -> None:
    chosen = ("agents", "pressure", "streaming")
    flags = tuple(word for name in chosen for word in ("--only", name))
    assert run(box, tmp_path, "all", flags=flags) == UNDECIDED
    verdicts = {name: one["verdict"] for name, one in read(tmp_path, "runs.json")["runs"].items()}
    assert verdicts["streaming"] == "UNDECIDED"
    assert verdicts["agents"].startswith("NOT RUN agents starts engines with options of its own")
    assert verdicts["pressure"].startswith("NOT RUN The engine on ")


def test_a_key_that_is_revoked_in_the_run_ends_it_and_keeps_what_was_measured(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rate, rates = checkpoint_cost._rate, []

    def revoked_after_the_first(*given: Any) -> float:
        if rates:
            box.keys.revoke("ada")
        rates.append(rate(*given))
        return rates[-1]

    monkeypatch.setattr(checkpoint_cost, "_rate", revoked_after_the_first)
    public = own.key_folder().own("ada").public
    try:
        assert run(box, tmp_path, "checkpoint-cost", *COST, "neighbour_tokens=400") == 1
    finally:
        box.keys.allow(public, "ada")
    found = read(tmp_path, checkpoint_cost.FILE)
    assert (found["status"], found["neighbour_rates"]["alone"]) == ("error", rates[:1])
    assert "does not admit this key any more" in found["error"]
    assert "does not admit this key any more" in capsys.readouterr().err.splitlines()[-1]
