"""Each step of `make gpu` that needs a large card, at the smallest size, on the device of the run: its logic runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.gpu import attention, graphs, pressure, quantized, races, ring, shapes, start_up
from djinn_evaluation.benchmarks.gpu.__main__ import SIZE_WITHOUT_A_GPU, main
from djinn_evaluation.benchmarks.gpu.steps import Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Result, Setting
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import CheckpointCost, ResumeLatency, ValidationFile, Whitebox
from djinn_evaluation.serving import Shape, require_whitebox
from djinn_jupyter.engine.memory.kv.slab import Page
from djinn_jupyter.engine.memory.weights.copy_engine import StreamCopyEngine, ThreadCopyEngine
from djinn_jupyter.errors import ModelRefused
from djinn_jupyter.wire.nouns import LayerCopy
from tests.device import DEVICE


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(ring, "SECONDS_IF_QUICK", 0.2)
    monkeypatch.setattr(shapes, "FOLDER", tmp_path / "models")
    monkeypatch.setattr(races, "COUNT_IF_QUICK", 10)
    return Setting(quick=True, threads=1, home=tmp_path, results=tmp_path, factor=SIZE_WITHOUT_A_GPU)


def ran(step: Callable[[Setting], Result], setting: Setting) -> Result:
    """Run a step of minutes, which has to keep figures as it goes: a turn may be cut."""
    kept: list[str] = []
    found = step(replace(setting, so_far=lambda figures, how_far: kept.append(how_far)))
    assert kept
    return found


def value_of(found: Result, name: str) -> float | None:
    (figure,) = [figure for figure in found.figures if name in figure.name]
    return None if figure.value is None else figure.value.median


def test_kernels_of_attention_are_counted_by_the_bits_that_they_repeat(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert value_of(attention.run_attention(tiny), "math attention in float32") == 1.0
    monkeypatch.setattr(attention, "_by", lambda backend, query, keys, values: torch.rand(1))
    monkeypatch.setattr(attention, "KERNELS", ("math",))
    assert value_of(attention.run_attention(tiny), "math attention in float32") == 0.0


def test_a_case_that_a_kernel_refuses_leaves_the_others_their_figure(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by(backend: object, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if keys.shape[1] == 8:
            raise RuntimeError("No available kernel. Aborting execution.")
        return query

    monkeypatch.setattr(attention, "_by", by)
    monkeypatch.setattr(attention, "KERNELS", ("efficient", "flash"))
    monkeypatch.setattr(attention, "DTYPES", (torch.float16,))
    assert (
        value_of(attention.run_attention(tiny), "efficient attention in float16 that repeat their bits (4 of 6") == 1.0
    )
    monkeypatch.setattr(attention, "HEADS", ((32, 8),))
    (figure,) = [
        figure for figure in attention.run_attention(tiny).figures if "flash attention in float16" in figure.name
    ]
    assert (figure.value, figure.not_run) == (None, "No available kernel. Aborting execution.")


def test_each_kind_of_quantized_weights_passes_the_self_test_or_is_named(tiny: Setting) -> None:
    found = ran(quantized.run_quantized, tiny)
    for kind in quantized.KINDS:
        (figure,) = [one for one in found.figures if one.name == f"{kind.name} passes the self-test"]
        if kind.name in ("fp8", "mxfp4"):  # need no library that is not here
            assert figure.met is True
            assert value_of(found, f"weights of {kind.name}")
        else:
            assert figure.met is True or re.search(r"torchao|bitsandbytes", figure.not_run)


def test_a_kind_that_is_refused_misses_its_bar_with_the_reason(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(config: Any) -> None:
        raise ModelRefused("It is not exact.")

    monkeypatch.setattr(quantized, "open_engine", refused)
    monkeypatch.setattr(quantized, "KINDS", quantized.KINDS[:1])
    passes, weights = quantized.run_quantized(tiny).figures
    assert (passes.met, passes.name) == (False, "--quantize int8 passes the self-test: It is not exact.")
    assert (weights.value, weights.not_run) == (None, "It is not exact.")


@pytest.mark.processes
def test_decode_by_graphs_is_measured_on_a_gpu_and_is_no_zero_elsewhere(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ran(graphs.run_graphs, tiny)
    assert found.checks["new tokens of the engine and of plain generate"]
    by_graphs = [figure for figure in found.figures if "of the bar" in figure.name]
    if DEVICE.type == "cuda":
        assert all(figure.value is not None for figure in by_graphs)
    else:
        assert [(figure.value, figure.not_run) for figure in by_graphs] == [(None, graphs.NO_GPU)] * 2
    kept = Kept.of("graphs", tiny)
    whole = kept.found[graphs.THIRTEEN]
    kept.add(graphs.THIRTEEN, {**whole, "done": ["_plain", "_without"]})  # as a kill in the midst of a shape leaves it
    monkeypatch.setattr(graphs, "worker", lambda *given: pytest.fail("measured already"))
    monkeypatch.setattr(graphs, "_decoded", lambda *given: pytest.fail("measured already"))
    assert graphs.run_graphs(tiny).checks == found.checks, "what an earlier turn compared counts too"


@pytest.mark.parametrize(("speed", "of_the_bar"), [(300.0, 1.0), (100.0, 150 / 70)])
def test_the_bar_of_graphs_is_the_smaller_one(speed: float, of_the_bar: float) -> None:
    rates = {graphs.PLAIN: [50.0], graphs.SPEED: [speed], graphs.WITHOUT: [60.0]}
    rates = {**rates, graphs.WITH: [150.0], graphs.ARMED_WITH: [125.0]}
    bar, without, armed, of_vllm = graphs._figures("a shape", {**rates, graphs.VLLM: [120.0]}, None)
    assert bar.value.median == pytest.approx(of_the_bar)
    assert bar.met is True
    assert without.value is not None
    assert armed.met is False
    assert of_vllm.value.median == pytest.approx(1.25)
    *_, of_vllm = graphs._figures("a shape", rates, "vLLM is not installed here")
    assert (of_vllm.value, of_vllm.not_run) == (None, "vLLM is not installed here")


@pytest.mark.processes
def test_a_session_of_a_large_shape_leaves_and_comes_back(tiny: Setting) -> None:
    found = ran(start_up.run_moves, tiny)
    assert found.settings["bytes_of_a_session"]
    assert value_of(found, "swap out to the host")
    assert value_of(found, "told by the focus") is not None


@pytest.mark.processes
def test_a_large_shape_goes_through_the_ring(tiny: Setting) -> None:
    found = ran(ring.run_large_ring, tiny)
    assert found.checks["layer copies"]
    assert value_of(found, "new tokens")
    assert value_of(found, "runs whose tokens are accelerate's") == 1.0


@pytest.mark.slow
@pytest.mark.processes
def test_a_start_gives_the_first_token_of_a_plain_script(tiny: Setting) -> None:
    found = ran(start_up.run_start_up, tiny)
    assert found.checks == {"the first token of djinn and of a plain script": start_up.ROUNDS_OF_START_UP}
    assert value_of(found, "of reading the files")


def test_interleavings_are_right_and_go_on_where_they_were(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "CHUNK", 5)
    assert value_of(ran(races.run_races, tiny), "wrong readings") == 0
    monkeypatch.setattr(races, "wrong", lambda seeds: pytest.fail("decided already"))
    races.run_races(tiny)


@pytest.mark.parametrize(
    ("part", "rule", "broken"),
    [
        (Page, "wrote", lambda self: None),
        (StreamCopyEngine if DEVICE.type == "cuda" else ThreadCopyEngine, "wait", lambda self, arrival: None),
    ],
    ids=["a stale copy wins", "computing does not wait for the copy"],
)
def test_interleavings_find_a_fault(monkeypatch: pytest.MonkeyPatch, part: type, rule: str, broken: object) -> None:
    monkeypatch.setattr(part, rule, broken)
    assert races.wrong(range(20))


def test_a_tool_that_is_missing_or_says_nothing_is_no_zero(
    tiny: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / races.TOOL
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(races.Unseen, match="not on the path"):
        races.errors("memcheck", ())
    for said, found in (("ERROR SUMMARY: 2 errors", 2), ("RACECHECK SUMMARY: 0 hazards displayed", 0)):
        tool.write_text(f"#!/bin/sh\necho '========= {said}'\n")
        tool.chmod(0o700)
        assert races.errors("memcheck", ()) == found
    tool.write_text("#!/bin/sh\necho 'Device not supported'\n")
    with pytest.raises(races.Unseen, match="says no summary: Device not supported"):
        races.errors("memcheck", ())
    tool.write_text("#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'; exit 4\n")
    with pytest.raises(races.Unseen, match="no error of a program that ended with status 4"):
        races.errors("memcheck", ())


def test_every_experiment_has_a_verdict_or_a_reason(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a claim needs a second time too. One that is cut has no verdict, and is run again in another turn."""
    said: dict[str, str | None] = {"whitebox": "PASS", "pressure": "FAIL", "validation": "ERROR no room"}
    monkeypatch.setattr(pressure, "verdict", lambda name, *_: said.get(name, "PASS"))
    found = {figure.name.rpartition(" ")[2]: figure for figure in ran(pressure.run_evaluation, tiny).figures}
    assert {"resume_latency", "checkpoint_cost", "pressure_again", "whitebox_again", "pressure_fewer"} <= found.keys()
    assert (found["whitebox"].met, found["pressure"].met) == (True, False)
    assert found["validation"].not_run == "ERROR no room"
    (tiny.home / "again").mkdir()
    said["pressure"] = None
    with pytest.raises(Unfinished, match=r"^1 of \d+ experiments; pressure was cut after 4\d\d s$"):
        pressure.run_evaluation(replace(tiny, results=tiny.home / "again"))
    said["pressure"] = "PASS"
    again = pressure.run_evaluation(replace(tiny, results=tiny.home / "again"))
    assert again.settings["verdicts"]["pressure"] == "PASS"


@pytest.mark.slow
@pytest.mark.processes
def test_the_profile_of_a_gpu_is_run_on_tiny_weights(tiny: Setting) -> None:
    """The same file, model and command as on a card, with keys for the size."""
    for step in (pressure.run_pressure, pressure.run_pressure_again):
        found = ran(step, tiny)
        ((name, verdict),) = found.settings["verdicts"].items()
        assert verdict.split(" ")[0] in ("PASS", "UNDECIDED")
        assert value_of(found, "alive at the same time") == value_of(found, "alone, of 50 resumed") == 50
        assert value_of(found, "the engine counted") == pytest.approx(1.0, abs=0.05)
        assert value_of(found, "moves out")
        assert value_of(found, "moves in")
        assert (value_of(found, "the driver saw") is None) == (DEVICE.type != "cuda")
        told = json.loads((tiny.home / "pressure" / name / pressure.FILE).read_text())
        assert told["swapping_active"]
    claims = json.loads((tiny.home / "pressure" / "claims.json").read_text())["claims"]
    assert [claim["verdict"] for claim in claims if claim["claim"] == 16] == ["holds at this size"], "it reads both"


def test_a_run_of_pressure_that_is_cut_leaves_its_figures(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the run that was cut, and none of a file that an earlier one left."""
    place = tiny.home / "pressure" / "pressure"
    place.mkdir(parents=True)
    asked = {"num_sessions_requested": 50, "capacity_gb": 2.0, "slab_books_gb": None}
    so_far = {**asked, "sessions_alive_max": 50, "outputs_equal": 29, "sessions_resumed": 30, "swap_events": None}

    def cut(*given: object) -> None:
        (place / pressure.FILE).write_text(json.dumps(so_far))

    left: list[Any] = []
    setting = replace(tiny, so_far=lambda figures, how_far: left.append(list(figures)))
    monkeypatch.setattr(pressure, "verdict", cut)
    with pytest.raises(Unfinished, match="0 of 1 experiments; pressure was cut"):
        pressure.run_pressure(setting)
    alive, equal, counted, seen, *speeds = left[-1]
    assert (alive.met, equal.met) == (True, False)
    assert equal.name == "sessions: outputs equal to the session's alone, of 30 resumed"
    assert [one.value for one in (counted, seen, *speeds)] == [None] * 4
    assert seen.not_run == "the run did not come to its end"
    monkeypatch.setattr(pressure, "verdict", lambda *given: None)
    os.utime(place / pressure.FILE, (0, 0))
    with pytest.raises(Unfinished):
        pressure.run_pressure(setting)
    assert left[-1] == []
    monkeypatch.setattr(pressure, "verdict", lambda *given: "ERROR no card")
    assert [figure.not_run for figure in pressure.run_pressure(tiny).figures] == ["ERROR no card"]


def test_keys_for_tiny_weights_are_those_of_the_profiles_file(tiny: Setting) -> None:
    """They change no key that a card's run decides by, and the sessions do not fit."""
    config = small_shape()
    file = read("pressure_gpu.yaml", Whitebox, pressure._tiny(config))
    usual = read("pressure_gpu.yaml", Whitebox)
    assert (file.validation, file.model.name) == (usual.validation, usual.model.name)
    sessions_of = file.experiment.memory_pressure_test
    assert sessions_of.num_sessions == 50
    pages = 50 * file.experiment.inference.input_length * shapes.per_position(config)
    limit = (file.hardware.vram_limit_gb or 0) * 2**30 - shapes.weight_bytes(config)
    assert 0.5 * pages < limit < 0.9 * pages


def test_the_verdict_is_what_the_command_says(tiny: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'pressure_again PASS'; echo 'pressure ERROR no card'; exit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(pressure.sys, "executable", str(python))
    assert pressure.verdict("pressure", [], tmp_path, 60) == "ERROR no card"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    assert pressure.verdict("pressure", [], tmp_path, 0.2) is None


def test_an_experiment_ends_with_its_turn(tiny: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would keep the card's memory, and the turn would wait for it."""
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(pressure.sys, "executable", str(tmp_path / "python"))
    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(1))
    ending = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    ending.start()
    try:
        with pytest.raises(SystemExit):
            pressure.verdict("pressure", [], tmp_path, 600)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_windows_hold_all_bytes_of_the_copies() -> None:
    copies = [
        LayerCopy(number=n, layer=n, bytes_moved=100, seconds=0.5, begun=10 + 0.5 * n, stalled_seconds=0.0)
        for n in range(4)
    ]
    assert ring.windows(copies, 0.25) == pytest.approx([200.0] * 8)
    assert ring.windows([]) == []


def test_a_shape_that_finds_no_room_is_not_run(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "SPARE", 1e-9)
    with pytest.raises(NotRun, match="eight layers of Llama-2-70b-hf do not fit"):
        ring.run_large_ring(tiny)


def test_a_saved_shape_has_no_two_equal_rows(tiny: Setting) -> None:
    from safetensors.torch import load_file

    (file,) = shapes.saved(small_shape()).glob("*.safetensors")
    matrices = [tensor for tensor in load_file(file).values() if tensor.dim() == 2]
    assert all(len(matrix.unique(dim=0)) == len(matrix) for matrix in matrices)


def test_a_saved_shape_is_kept_for_the_next_step_until_another_is_saved(tiny: Setting) -> None:
    first = shapes.saved(small_shape())
    written = (first / shapes.INDEX).stat().st_mtime_ns
    assert shapes.saved(small_shape()) == first
    assert (first / shapes.INDEX).stat().st_mtime_ns == written
    other = shapes.saved(small_shape(layers=9))
    assert sorted(shapes.FOLDER.iterdir()) == [other]
    shapes.delete()
    assert not shapes.FOLDER.exists()


def test_a_shape_whose_saving_was_broken_off_is_saved_anew(tiny: Setting) -> None:
    first = shapes.saved(small_shape())
    (first / shapes.INDEX).unlink()
    (file,) = first.glob("*.safetensors")
    file.write_bytes(b"half")
    shapes.saved(small_shape())
    assert file.stat().st_size > len(b"half")


def small_shape(layers: int | None = None) -> dict[str, Any]:
    return shapes.shape(shapes.THIRTEEN, shapes.Scale(factor=SIZE_WITHOUT_A_GPU), layers)


def test_the_usual_shapes_are_the_architectures_own() -> None:
    full = shapes.shape(shapes.THIRTEEN, shapes.Scale(factor=1.0))
    assert shapes.weight_bytes(full) == 26_031_728_640
    assert shapes.per_position(full) == 2 * 40 * 5120 * 2


def test_sizes_are_above_nothing_and_at_most_the_usual(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("0", "2"):
        with pytest.raises(SystemExit):
            main(["--size", size])
    assert "2 is no size; write a number above 0, at most 1" in capsys.readouterr().err


def test_carried_wheels_are_those_of_the_tests() -> None:
    tried = (CHECKOUT / "constraints.txt").read_text().splitlines()
    lines = (CHECKOUT / "evaluation/djinn_evaluation/benchmarks/gpu/requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#") and line not in tried] == []


def test_a_gpus_profile_fits_the_shape_that_is_run_with_it() -> None:
    config = shapes.shape(shapes.THIRTEEN, shapes.Scale(factor=1.0))
    shape = Shape(name=shapes.THIRTEEN, layers=config["num_hidden_layers"], positions=config["max_position_embeddings"])
    for name in ("whitebox", "pressure"):
        file = read(f"{name}_gpu.yaml", Whitebox)
        require_whitebox(shape, file)
        shape.require_layers({"layers": max(file.experiment.breakpoints.layers)})
    wanted = file.experiment.memory_pressure_test
    length = file.experiment.inference.input_length + file.experiment.inference.continuation_tokens
    demand = shapes.weight_bytes(config) + wanted.num_sessions * length * shapes.per_position(config)
    assert demand > (file.hardware.vram_limit_gb or 0) * 2**30
    assert max(read("resume_latency_gpu.yaml", ResumeLatency).layers) < shape.layers
    assert read("checkpoint_cost_gpu.yaml", CheckpointCost).layer < shape.layers
    assert read("validation_gpu.yaml", ValidationFile).ring_gb == 12
