"""A run that is ended before it is over, by a real signal to a real process or at its own limit, keeps its results."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.evaluation.fields import missing
from tests.ports import free_port

pytestmark = pytest.mark.processes
SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The progress line at which the run is ended, the file it is then at, the parts of it measured by then."""

    line: str
    file: str
    measured: str
    settings: tuple[str, ...] = ()


MOMENTS = {
    "whitebox": Moment(
        line="trial 1, layer 1", file="djinn_breakpoint_results.json", measured="token_accuracy.token_accuracy_mean"
    ),
    "pressure": Moment(
        line=r"\[Session 5/12\] stopped", file="memory_pressure_results.json", measured="num_sessions_spawned"
    ),
    "resume-latency": Moment(
        line="layer 1, KV host", file="djinn_resume_latency.json", measured="results.0.resume_latency_median_ms"
    ),
    "checkpoint-cost": Moment(
        line="with_stops: ",
        file="checkpoint_cost_results.json",
        measured="neighbour_tokens_per_s.alone",
        settings=("neighbour_tokens=30",),
    ),
    "validation": Moment(
        line="sample 1: ",
        file="logit_equivalence_results.json",
        measured="bytes_streamed_per_pass.0",
        settings=("logging.verbose=true",),
    ),
}


@dataclass(slots=True)
class Run:
    """`djinn experiment NAME --profile small` in a process of its own, which is known by its folder for small files:
    its engine inherits that, and no other process has it."""

    folder: Path
    small_files: str
    process: subprocess.Popen[str]

    def until(self, pattern: str) -> None:
        said = []
        for line in self.process.stderr:
            said.append(line)
            if re.search(pattern, line):
                return
        raise AssertionError(f"It ended before it said {pattern}: {''.join(said)}")

    def engines(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if p.pid != self.process.pid and self._own(p)]

    def ends(self) -> int:
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode

    def file(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def _own(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == self.small_files
        except psutil.Error:
            return False


@pytest.fixture
def small_files() -> Iterator[str]:
    """A folder with a short path: sockets lie in it."""
    folder = tempfile.mkdtemp(prefix="djx", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def started(name: str, folder: Path, small_files: str, *settings: str) -> Run:
    chosen = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "djinn_jupyter.cli.main", "experiment", name, "--profile", "small"]
    process = subprocess.Popen(
        [*command, "--output-dir", str(folder), *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": small_files},
    )
    return Run(folder, small_files, process)


def at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else found[name]
    return found


# One of them in `make test`: what they share is what can break, and each has its own engine to start.
CASES = [
    (name, signal.SIGINT) if name == "checkpoint-cost" else pytest.param(name, signal.SIGINT, marks=pytest.mark.slow)
    for name in MOMENTS
]


@pytest.mark.parametrize(
    ("name", "number"), [*CASES, pytest.param("pressure", signal.SIGTERM, marks=pytest.mark.slow)], ids=str
)
def test_an_interrupt_leaves_what_was_measured(
    name: str, number: signal.Signals, tmp_path: Path, small_files: str
) -> None:
    moment = MOMENTS[name]
    settings = (*moment.settings, f"server.port={free_port()}") if name == "validation" else moment.settings
    run = started(name, tmp_path, small_files, *settings)
    run.until(moment.line)
    engines = run.engines()
    assert engines, "an engine is at work"
    run.process.send_signal(number)
    assert run.ends() == 128 + number
    assert psutil.wait_procs(engines, timeout=SECONDS)[1] == []
    found = run.file(moment.file)
    assert (found["status"], found["interrupted"]) == ("partial", True)
    assert at(found, moment.measured)
    assert missing(tmp_path) == []
    assert (tmp_path / "report.md").read_text().startswith(f"# {name}: BROKEN OFF")
    assert "BROKEN OFF" in (tmp_path / "report.html").read_text()
    assert list(Path(small_files).glob("djinn-*")) == []


@pytest.mark.slow
def test_an_interrupt_while_the_engine_starts(tmp_path: Path, small_files: str) -> None:
    run = started("checkpoint-cost", tmp_path, small_files)
    run.until("loading demo")
    engines = run.engines()
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert psutil.wait_procs(engines, timeout=SECONDS)[1] == []
    assert run.file("checkpoint_cost_results.json")["status"] == "partial"


@pytest.mark.alone
def test_the_limit_is_hard(tmp_path: Path, small_files: str) -> None:
    """It ends the run within a step that takes longer: the pause of an hour is not waited for."""
    pause = "experiment.concurrent_demo.pause_duration_seconds=3600"
    trials = ("experiment.breakpoints.enabled=false", "validation.require_output_equivalence=false")
    steering = ("experiment.activation_steering.enabled=false", "validation.require_steering_effect=false")
    run = started("whitebox", tmp_path, small_files, pause, *trials, *steering, "duration=0.1")
    run.until("Starting the engine")
    assert run.ends() == 1
    assert psutil.wait_procs(run.engines(), timeout=SECONDS)[1] == []
    found = run.file("djinn_breakpoint_results.json")
    assert (found["status"], found["interrupted"]) == ("partial", True)
    assert "has reached its limit of 0.1 minutes" in (tmp_path / "report.md").read_text()
