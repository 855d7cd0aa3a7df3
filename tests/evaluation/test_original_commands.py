"""The commands and files of the original run, adapted by nothing but the table of docs/from_the_original.md."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine
from djinn_evaluation.commands import experiment
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.configuration.reading import explain, parse
from djinn_evaluation.configuration.sections import Whitebox
from djinn_evaluation.serving import ServerAddress, entry_here
from djinn_evaluation.validation import sleep
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.link import doctor
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire.registry import Entry
from tests.faults.inside import OURS_ALONE, Inside, moved
from tests.process.served import entry_for
from tests.threads import one_thread
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "from_the_original.md"
EXCERPT = """
model:
  name: "gpt2"
  source: "transformers"
experiment:
  breakpoints:
    layers: [3, 6, 9]
  activation_steering:
    enabled: true
    steering_layer: 6
    modification_factor: 0.9
  concurrent_demo:
    enabled: true
"""
COMMANDS = """
run_exp3_osdi.py --config ../configs/exp3_osdi_full.yaml --output-dir DIR --gpu-index 1
run_exp3_osdi.py --config ../configs/exp3_osdi_full.yaml --output-dir DIR --gpu-index 1 --skip-pytorch --skip-vllm
run_exp3_osdi.py --config ../configs/exp3_osdi_llama.yaml --output-dir DIR
run_exp3_final_memory_pressure.py --output-dir DIR --num-sessions 50
run_all_validations.py --config ../configs/validation_smoke.yaml
run_all_validations.py --config ../configs/validation_full.yaml
test_logit_equivalence.py --model meta-llama/Llama-2-7b-hf
test_pcie_flatline.py --model meta-llama/Llama-2-70b-hf
test_agent_sleep_resume.py --server-address localhost:5556
""".strip().splitlines()
SERVER = "python -m djinn.server.server_main --port 5556 --gpu 0"
GREP = r"""tail -50 exp3_osdi.log | grep "Token Accuracy\|Checkpoint\|Overhead" """
Ran = list[tuple[str, argparse.Namespace, Any]]


def table() -> dict[str, str]:
    """The original's programs and paths, and ours, as the page has them."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
    return {there.removeprefix("python "): here for there, here in rows}


def adapted(command: str, folder: Path) -> list[str]:
    """Return the arguments of `djinn` for a command of the original."""
    for there, here in table().items():
        command = command.replace(there, here)
    command = command.replace("DIR", str(folder)).removeprefix("python ")
    words = shlex.split(command)
    assert words[0] == "djinn", f"the table has no row for {command}"
    return words[1:]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The experiments that were run, with their options and files, on a machine of two GPUs with an engine."""
    found: Ran = []

    def runs(name: str) -> Any:
        def run(options: argparse.Namespace, file: Any) -> list[str]:
            found.append((name, options, file))
            return []

        return run

    offers = tuple(replace(offer, run=runs(offer.name)) for offer in experiment.OFFERS)
    monkeypatch.setattr(experiment, "OFFERS", offers)
    monkeypatch.setattr(machine, "gpus", lambda: ["H100", "H100"])
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_its_file_and_runs(command: str, ran: Ran, tmp_path: Path) -> None:
    assert cli.main(adapted(command, tmp_path)) == 0
    ((name, options, file),) = ran
    assert name == ("whitebox" if "osdi" in command else "pressure" if "pressure" in command else "validation")
    if "DIR" in command:
        assert options.output_dir == tmp_path
    if "--gpu-index" in command:
        assert options.setup.device == "cuda:1"
    if "--skip-vllm" in command:
        assert options.skip_pytorch
        assert options.skip_vllm
    if "--num-sessions" in command:
        assert file.experiment.memory_pressure_test.num_sessions == 50
        assert (file.model.name, file.experiment.inference.input_length) == ("meta-llama/Llama-2-13b-hf", 2048)
    if "--server-address" in command:
        assert options.setup.server == ServerAddress(place="localhost:5556")
    if command.startswith("test_"):
        assert f"{options.only}.py" in command


@pytest.mark.parametrize("name", [offer.name for offer in experiment.OFFERS])
def test_every_experiment_takes_a_gpu(name: str, ran: Ran, tmp_path: Path) -> None:
    chosen = ["--profile", "small", "--output-dir", str(tmp_path), "--gpu-index", "1"]
    assert cli.main(["experiment", name, *chosen]) == 0
    assert ran[0][1].setup.device == "cuda:1"
    assert cli.main(["experiment", name, *chosen[:-1], "2"]) == 1


def test_the_server_is_an_engine_on_that_port_and_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    load = "djinn_jupyter.api.loading.load"
    monkeypatch.setattr(load, lambda model, **options: asked.append({"model": model, **options}))
    assert cli.main([word.replace("MODEL", "gpt2") for word in adapted(SERVER, tmp_path)]) == 0
    found = asked[0]
    assert (found["model"], found["listen"], found["device"]) == ("gpt2", "tcp://127.0.0.1:5556", "cuda:0")
    assert found["idle_swap_seconds"] == 1


def test_the_excerpt_means_what_the_whole_file_means() -> None:
    """What it leaves out has a default, and `--explain` tells each."""
    excerpt = parse(EXCERPT, Whitebox)
    assert excerpt.experiment.num_trials == 3
    assert (excerpt.experiment.inference.input_length, excerpt.experiment.inference.compared) == (512, 512)
    assert excerpt.experiment.concurrent_demo.pause_duration_seconds == 5
    told = dict(line.split(maxsplit=1) for line in explain(Whitebox).splitlines())
    for key, default in (("num_trials", "3"), ("inference.input_length", "512"), ("inference.context_tokens", "none")):
        assert told[f"experiment.{key}"].endswith(f"; default {default})")
    assert told["duration"].endswith("; default 180.0)")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    """Experiments on a tiny model with the layers of GPT-2."""
    return Inside(tmp_path_factory.mktemp("gpt2"), family="gpt2", layers=12)


def test_the_excerpt_runs_and_its_log_has_the_old_words(gpt2: Inside) -> None:
    """In little: one trial of a short prompt and a short pause; the lines are those of a whole run."""
    tokens = ("inference.input_length=16", "inference.continuation_tokens=2")
    shorter = ("num_trials=1", "overhead_pairs=1", *tokens, "concurrent_demo.pause_duration_seconds=0.01")
    with one_thread():
        ran = gpt2.run("whitebox", *(f"experiment.{setting}" for setting in shorter), text=EXCERPT, flags=OURS_ALONE)
    assert (ran.status, ran.file("djinn_breakpoint_results.json")["status"]) == (0, "success"), ran.said
    lines = subprocess.run(GREP, shell=True, cwd=ran.folder, capture_output=True, text=True, check=True).stdout
    assert lines.count("Token Accuracy: 100.00%") == 3
    assert lines.count("Checkpoint:") == 3
    assert lines.count("Overhead:") == 3 + 1, "each trial's, and the median of the pairs"


def serving(model: str = "gpt2", port: int = 5556, **options: Any) -> Entry:
    """The entry of an engine that listens on a port of this machine."""
    entry = entry_for("ipc:///nowhere/commands", listens=f"tcp://127.0.0.1:{port}")
    identity = Identity(model=model)
    found = Identity(model=model, dtype="float32", device="cpu")
    return msgspec.structs.replace(entry, identity=identity, found=found, options=Options(**options))


def test_an_address_is_that_of_the_engine_that_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of one here where it is an address of another machine."""
    mine = serving()
    monkeypatch.setattr(dj, "engines", lambda: (serving(port=7000), mine))
    for address in ("localhost:5556", "127.0.0.1:5556", "tcp://127.0.0.1:5556"):
        assert entry_here(ServerAddress(place=address)) is mine
    mine = msgspec.structs.replace(serving(), listens="tcp://0.0.0.0:5556")
    monkeypatch.setattr(dj, "engines", lambda: (mine,))
    assert entry_here(ServerAddress(place="localhost:5556")) is mine
    assert entry_here(ServerAddress(place="192.0.2.1:5556")) is None  # an address of documents, and of no machine
    assert entry_here(ServerAddress(place="ssh://localhost:5556")) is None
    assert entry_here(ServerAddress(place="localhost:5556", key="ada")) is None


@pytest.mark.parametrize(
    ("entry", "address", "flags", "sentence"),
    [
        (serving(), "localhost:5557", (), "Nothing listens at localhost:5557 (connection refused)"),
        (serving(), "here", (), "Nothing listens at here:5556 (no machine of that name is known here)"),
        (serving(), "here:", (), "'here:' is no address of an engine; write gpu-box, or tcp://gpu-box:5556."),
        (serving(idle_swap_seconds=60.0), "localhost:5556", (), "start the engine with --idle-swap-seconds 1."),
        (serving(), "localhost:5556", ("--profile", "small"), "serves gpt2 in float32, not demo in float32."),
    ],
)
def test_an_engine_that_cannot_serve_the_run_is_refused(
    entry: Entry,
    address: str,
    flags: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dj, "engines", lambda: (entry,))
    command = f"test_agent_sleep_resume.py --server-address {address} --output-dir DIR"
    assert cli.main([*adapted(command, tmp_path), *flags]) in (1, UNDECIDED)
    assert sentence in capsys.readouterr().err


def test_an_agent_sleeps_in_an_engine_that_runs(
    gpt2: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's own log tells of the idle session, its eviction and its return; the engine goes on afterwards. The
    night lasts until the agent has left, however slow the machine is."""
    slept = sleep._sleep

    def until_it_has_left(course: Any, engine: Any, *night: Any) -> None:
        def left() -> bool:
            slept(course, engine, *night)
            return {one.name: one.residency for one in engine.sessions()}["agent"] not in ("resident", "storing")

        until(left, "the agent's leaving")

    monkeypatch.setattr(sleep, "_sleep", until_it_has_left)
    entry, asked, desk = serving("gpt2", idle_swap_seconds=0.05), [], gpt2.desk()
    monkeypatch.setattr(desk.engine.residency.eviction, "_idle_seconds", 0.05)
    monkeypatch.setattr(dj, "engines", lambda: (entry,))
    monkeypatch.setattr(sleep, "PROMPT", 24)
    command = "test_agent_sleep_resume.py --server localhost:5556 --output-dir DIR"
    with one_thread(), moved(desk) as engine, caplog.at_level("INFO"):
        monkeypatch.setattr(dj, "load", lambda model, **options: asked.append((model, options)) or engine)
        times = ("idle_threshold_seconds=0.05", "sleep_duration_seconds=0.1")
        settings = [word for time in times for word in ("--set", f"agent_sleep_resume.{time}")]
        assert cli.main([*adapted(command, tmp_path), *settings]) == 0
        assert not engine.sessions()
    (found,) = asked
    assert (found[0], found[1]["idle_swap_seconds"]) == ("gpt2", 0.05)
    session = r"session 'agent'"
    for line in (
        rf"idle detected: {session}, \d+\.\d{{3}} s without use",
        rf"evicted: {session}, [1-9]\d* bytes to the host in \d+\.\d{{6}} s \(idleness\)",
        rf"restored: {session}, [1-9]\d* bytes from the host in \d+\.\d{{6}} s \(needed\)",
    ):
        assert any(re.fullmatch(line, said) for said in caplog.messages), (line, caplog.messages)


def test_the_doctor_tells_of_pinned_copies_both_ways_and_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"version": "2", "threads": 1, "link": 1e9, "devices": [["H100", 1 << 30, 1 << 36, [55e9, 12e9]]]}
    asked = subprocess.CompletedProcess([], 0, json.dumps(told), "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *words, **options: asked)
    said = [str(finding) for finding in doctor._torch()]
    assert "ok   H100: Host -> Device (Pinned) 55.0 GB/s." in said
    assert any(line.startswith("note H100: Device -> Host (Pinned) 12.0 GB/s; ") for line in said)


def test_the_doctor_asks_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "575.1",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7 << 30, total=80 << 30),
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetName": "H100",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *asked, answer=answer: answer)
    (finding,) = doctor._nvml()
    told = "NVML, driver 575.1: H100, PCIe 5 x16, 7.00 GiB of 80.0 GiB in use by all programs."
    assert (finding.level, finding.sentence) == ("ok", told)

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    (finding,) = doctor._nvml()
    assert (finding.level, "does not answer" in finding.sentence) == ("note", True)


def test_every_name_that_the_page_sends_its_readers_to_exists() -> None:
    owners = {"session": RemoteSession, "engine": RemoteEngine, "dj": dj, "stop": Paused, "done": Finished}
    section = PAGE.read_text().partition("## Names of the Python API")[2].partition("\n## ")[0]
    ours = " ".join(row.rpartition(" | ")[2] for row in section.splitlines())
    named = set(re.findall(r"\b(session|engine|dj|stop|done)\.(\w+)", ours))
    assert len(named) > 20
    assert [f"{owner}.{name}" for owner, name in sorted(named) if not hasattr(owners[owner], name)] == []
