"""What a card tells of itself, a smaller card that is imposed, and its link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine as devices
from djinn_evaluation import memory
from djinn_evaluation.baselines import copies as plain
from djinn_evaluation.link import TOLERANCE, Link, TimedCopy, Way, of_transfer
from djinn_evaluation.nvml import Unseen, card, counted, nvml_name
from djinn_evaluation.timing import resume_latency
from djinn_jupyter import machine
from djinn_jupyter.engine.__main__ import engine_config, parser
from djinn_jupyter.engine.process import build
from djinn_jupyter.engine.session.residence import Swap
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import LOADED_LATER, fraction_of, free_on
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import launcher
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import EngineStatistics, Transfer
from tests.engine.memory.weights.saved import desk_from, save
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import PRESSED, TRIALS
from tests.threads import one_thread
from tests.widgets.samples import statistics


@pytest.mark.parametrize(
    ("index", "visible", "name"),
    [(0, "", 0), (1, "", 1), (0, "3,1", 3), (1, "3,1", 1), (0, "GPU-8f3c", "GPU-8f3c"), (2, "0,1", 2)],
)
def test_a_card_is_named_as_the_environment_lets_cuda_count(index: int, visible: str, name: int | str) -> None:
    assert nvml_name(index, {"CUDA_VISIBLE_DEVICES": visible}) == name


def test_without_a_gpu_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library too."""

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with pytest.raises(Unseen, match="no GPU"), card("cpu"):
        pass
    with counted("cpu") as counter:
        pass
    assert (counter.mean, counter.reason) == (None, "no GPU")
    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with pytest.raises(Unseen, match="NVML does not answer: NVML Shared Library Not Found"), card("cuda:0"):
        pass


def memory_of(handle: int, version: int | None = None) -> Any:
    """Return the memory as NVML says it: in its first version the driver's own memory is used memory."""
    return SimpleNamespace(used=7 * 2**30 if version == pynvml.nvmlMemory_v2 else 8 * 2**30, total=80 * 2**30)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A library in place of NVML: one card, of which all processes together use 7 GiB."""
    calls: list[str] = []
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: calls.append("shut down"),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": memory_of,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return calls


def engine_on(device: str, **changes: object) -> Any:
    """The parts of an engine that a sampler reads; its own figures are of less memory."""
    reading: EngineStatistics = statistics(**changes)
    entry = SimpleNamespace(pid=os.getpid(), is_afar=False)
    channel = SimpleNamespace(down_since=None)
    model = SimpleNamespace(device=device)
    return SimpleNamespace(entry=entry, description=model, statistics=lambda: reading, channel=channel)


@contextmanager
def curve_of(engine: Any) -> Iterator[memory.Curve]:
    with memory.sampled(engine) as curve:
        curve.take()
        yield curve


def test_a_gpus_memory_is_nvmls_figure_not_the_engines(library: list[str]) -> None:
    with curve_of(engine_on("cuda:0", device_bytes_in_use=3 * 2**30)) as curve:
        assert curve.take().gigabytes == 7.0
        assert curve.measured_by == "NVML"
    assert library == ["shut down"]


def test_an_old_driver_is_asked_in_the_old_way(library: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def old(handle: int, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return memory_of(handle)

    with card("cuda:0") as seen:
        assert (seen.bytes_in_use(), seen.bytes_in_all()) == (7 * 2**30, 80 * 2**30)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", old)
        assert seen.bytes_in_use() == 8 * 2**30


def test_where_nvml_does_not_answer_the_file_says_who_was_asked() -> None:
    with curve_of(engine_on("cuda:0", device_bytes_in_use=3 * 2**30)) as curve:
        assert curve.take().gigabytes == 3.0
        assert curve.measured_by.startswith("the driver, asked by the engine (NVML does not answer")
    with curve_of(engine_on("cpu", device_bytes_in_use=None)) as curve:
        assert curve.measured_by == "the engine's accounting (no GPU)"


CARD, TAKEN = 140 * GIB, 3 * GIB
Patch = pytest.MonkeyPatch


class Started(Exception):
    """An engine would have been started; its arguments."""


@pytest.fixture
def a_gpu(monkeypatch: Patch, tmp_path_factory: pytest.TempPathFactory) -> None:
    devices_of_linux = tmp_path_factory.mktemp("dev")
    (devices_of_linux / "nvidia0").touch()
    monkeypatch.setattr(machine, "DEV", devices_of_linux)
    for name in ("CUDA_VISIBLE_DEVICES", "DJINN_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (CARD - TAKEN, CARD))


def arguments_of(monkeypatch: Patch, folder: Path, *flags: str) -> list[str]:
    """Return the arguments with which `djinn experiment pressure` starts its engine."""

    def start(identity: Any, arguments: list[str], **_: Any) -> Any:
        raise Started(arguments)

    monkeypatch.setattr(launcher, "start", start)
    with pytest.raises(Started) as caught:
        cli.main(["experiment", "pressure", "--profile", "small", "--output-dir", str(folder), *flags])
    return caught.value.args[0]


@pytest.mark.usefixtures("a_gpu")
def test_a_capacity_reaches_the_allocator_before_the_model_is_loaded(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ["a card", "another"])
    arguments = arguments_of(monkeypatch, tmp_path, "--capacity", "80GiB", "--gpu-index", "1")
    held: list[tuple[float, Any]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: held.append(given))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def loads(config: Any, progress: Any) -> Any:
        raise Started(list(held))

    monkeypatch.setattr(build, "foresee", loads)
    config = engine_config(parser().parse_args(arguments))
    with pytest.raises(Started) as caught:
        build.open_engine(config)
    ((fraction, device),) = caught.value.args[0]
    assert (fraction, device) == ((77 * GIB - LOADED_LATER) / (140 * GIB), torch.device("cuda", 1))


def test_a_limit_that_no_card_is_so_small_for_bounds_weights_and_pages(monkeypatch: Patch, tmp_path: Path) -> None:
    """The small profile's: CUDA's context alone fills a card of a dozen MiB, which would be refused on every GPU."""
    config = engine_config(parser().parse_args(arguments_of(monkeypatch, tmp_path)))
    assert (config.card_memory, config.device_memory) == (None, int(0.181 * GIB))
    config = engine_config(parser().parse_args(arguments_of(monkeypatch, tmp_path, "--capacity", "80GiB")))
    assert (config.card_memory, config.device_memory) == (80 * GIB, None)
    arguments = arguments_of(monkeypatch, tmp_path, "--set", "hardware.vram_limit_gb=null")
    assert engine_config(parser().parse_args(arguments)).card_memory is None, "no capacity imposes nothing"


@pytest.mark.usefixtures("a_gpu")
def test_nothing_is_asked_of_a_gpu_that_is_not_ours(monkeypatch: Patch) -> None:
    """CUDA sets up half a gigabyte on the GPU that is current when it is asked for memory without a name of one."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append("memory") or (CARD - TAKEN, CARD))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: asked.append("fraction"))

    def loads(config: Any, progress: Any) -> Any:
        raise Started

    monkeypatch.setattr(build, "foresee", loads)
    for device, first in (("cuda:1", torch.device("cuda", 1)), (None, torch.device("cuda", 0)), ("cpu", None)):
        asked.clear()
        with pytest.raises(Started):
            build.open_engine(EngineConfig(model="demo", device=device, card_memory=80 * GIB))
        assert asked == ([] if first is None else [first, "memory", "fraction"])


@pytest.mark.usefixtures("a_gpu")
def test_what_is_free_is_free_on_the_imposed_card() -> None:
    """A larger card than the one there is cannot be imposed."""
    where = torch.device("cuda")
    assert free_on(where, None) == CARD - TAKEN
    assert free_on(where, 80 * GIB) == 77 * GIB
    assert free_on(where, GIB) == 0
    with pytest.raises(UsageError, match=r"A card of 141 GiB cannot be imposed: the one there is has 140 GiB"):
        fraction_of(141 * GIB, total=CARD, taken=0)


@given(st.integers(1, CARD), st.integers(0, CARD - 1))
def test_what_others_take_and_what_is_left_make_the_imposed_card(card: int, taken: int) -> None:
    if card <= taken:
        with pytest.raises(UsageError, match="would be full"):
            fraction_of(card, total=CARD, taken=taken)
    else:
        assert fraction_of(card, total=CARD, taken=taken) * CARD + taken == pytest.approx(card)


def test_on_the_cpu_the_books_hold_to_it(tmp_path: Path) -> None:
    with one_thread():
        engine = desk_from(save(tmp_path / "llama"), device="cpu", card_memory=1 << 20).engine
    assert engine.slabs[0].statistics().bytes_limit == (1 << 20) - engine.weights.statistics().bytes_total


@pytest.mark.parametrize(
    ("name", "flag", "there", "sentence"),
    [
        ("whitebox", "--gpu-index=7", [], "torch finds none here; without an index the CPU computes."),
        ("pressure", "--gpu-index=7", ["H200", "A100"], "there are 0 (H200), 1 (A100)."),
        ("validation", "--set=hardware.gpu_device=7", ["H200", "A100"], "there are 0 (H200), 1 (A100)."),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_started(
    name: str,
    flag: str,
    there: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: there)
    assert cli.main(["experiment", name, "--profile", "small", "--output-dir", str(tmp_path / "out"), flag]) == 1
    assert capsys.readouterr().err == f"djinn: There is no GPU 7: {sentence}\n"
    assert not (tmp_path / "out").exists()


def test_the_gpus_of_this_machine_are_those_that_torch_finds() -> None:
    assert len(devices.gpus()) == torch.cuda.device_count()
    assert devices.device_of(None) is None


LINK = Link(copies={"in": [(GIB, 1.0), (GIB, 0.5)], "out": [(GIB, 1.0)]})
QUEUED = Transfer(direction="out", tier="host", bytes_moved=GIB, seconds=9.0, cause="asked", copy_seconds=2.0)


def copy(way: Way, nbytes: float, seconds: float) -> TimedCopy:
    return TimedCopy(what="It", way=way, nbytes=int(nbytes), seconds=seconds)


@pytest.mark.parametrize(
    ("found", "failures"),
    [
        (copy("in", 2 * GIB, 1.0), 0),
        (copy("in", 2 * GIB * TOLERANCE * 1.01, 1.0), 1),
        (copy("out", 2 * GIB, 1.0), 1),
        (copy("out", 4096, 0.0), 1),
        (copy("out", 0, 0.0), 0),
    ],
    ids=["as fast", "faster", "faster than that way", "in no time", "nothing"],
)
def test_a_copy_is_at_most_as_fast_as_the_fastest_plain_one_of_its_way(found: TimedCopy, failures: int) -> None:
    assert len(LINK.failures([found, copy("in", 8, 1.0)])) == failures


def test_a_file_names_the_link_and_the_fastest_transfer() -> None:
    fields = LINK.fields([copy("in", GIB, 1.0), copy("in", GIB, 4.0)])
    assert fields["in"] == {"link_gb_per_s": 2.0, "transfers": 2, "fastest_transfer_gb_per_s": 1.0}
    assert fields["out"]["transfers"] == 0
    (found,) = of_transfer("It", QUEUED)
    assert (found.way, found.rate) == ("out", GIB / 2), "a move is held against it by its copies alone"


def test_plain_copies_really_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "SECONDS", 0.0)
    monkeypatch.setattr(plain, "SIZES", (1 << 12, 1 << 16))
    seen: list[tuple[Any, bool]] = []
    timed = plain.seconds_of

    def looked_at(source: Any, target: Any, way: Any) -> float:
        target.zero_()
        seconds = timed(source, target, way)
        seen.append((way, bool((target == source).all())))
        return seconds

    monkeypatch.setattr(plain, "seconds_of", looked_at)
    found = plain.CopiedLink().measure("cpu")["copies"]
    assert set(seen) == {(way, True) for way in plain.WAYS}
    assert {size for size, _ in found["in"]} == {*plain.SIZES}
    assert all(seconds > 0 for way in found.values() for _, seconds in way)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


RUNS = {
    "whitebox": ("djinn_breakpoint_results.json", TRIALS, OURS_ALONE),
    "pressure": ("memory_pressure_results.json", PRESSED, ()),
    "checkpoint-cost": ("checkpoint_cost_results.json", ("repeat=1",), ()),
    "resume-latency": ("djinn_resume_latency.json", ("repeat=1",), ("--skip-recompute", "--skip-offload")),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_experiment_whose_copies_take_no_time_fails(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The planted fault: the clock of a copy begins when it is over."""
    file, settings, flags = RUNS[name]
    settle, timed = Swap.settle, resume_latency.timed
    monkeypatch.setattr(Swap, "settle", lambda swap, batch, size, seconds: settle(swap, batch, size, 0.0))
    monkeypatch.setattr(resume_latency, "timed", lambda work: (timed(work)[0], 1e-9))
    ran = inside.run(name, *settings, flags=flags)
    assert ran.status == 1
    assert "faster than the link" in ran.report
    link = ran.file(file).get("link") or ran.file(file)["metadata"]["link"]
    assert link["in"]["link_gb_per_s"] > 0
