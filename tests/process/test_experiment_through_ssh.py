"""An experiment on an engine that only ssh reaches: a real sshd on loopback."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.timing import checkpoint_cost
from djinn_jupyter.api import loading
from tests.evaluation.test_afar import COST
from tests.process.sshd import sshd
from tests.process.test_ssh import AT, ROOT, far_entries, far_folders

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_an_experiment_measures_an_engine_through_ssh(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"PYTHONPATH": str(ROOT), **far_folders(tmp_path / "box" / "home")}
    with sshd(tmp_path / "box", environment) as box:
        monkeypatch.setenv("PATH", str(box.bin), prepend=os.pathsep)
        engine = dj.load("demo", at=AT, page_positions=16, threads=1, device="cpu")
        chosen = [word for setting in COST for word in ("--set", setting)]
        there = ["--server", AT, "--output-dir", str(tmp_path / "found")]
        assert cli.main(["experiment", "checkpoint-cost", "--profile", "small", *there, *chosen]) == UNDECIDED
        found = json.loads((tmp_path / "found" / checkpoint_cost.FILE).read_text())
        assert found["neighbour_tokens_per_s"]["alone"] > 0
        assert "the link of its machine is not seen from here" in found["reasons"]["link"]
        assert found["reached_over_a_line"]["round_trip_ms"] > 0
        assert engine.sessions() == ()
        loading._channels.close()
        for entry in far_entries(box):
            os.kill(entry.pid, signal.SIGTERM)
