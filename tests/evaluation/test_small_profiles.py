"""Every experiment in its small profile, as a person starts it: a real engine, real swaps, and a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation import pressure
from djinn_evaluation.claims.judging import UNREAD
from djinn_evaluation.claims.table import CLAIMS
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.validation import flatline
from tests.evaluation.fields import missing
from tests.ports import free_port

pytestmark = pytest.mark.processes
SHORT = (
    "experiment.num_trials=1",
    "experiment.concurrent_demo.pause_duration_seconds=0.2",
    "experiment.concurrent_demo.idle_seconds=1",
    "experiment.concurrent_demo.paused_sessions=6",
    "experiment.concurrent_demo.until_full_sessions=24",
)


def run(name: str, folder: Path, *settings: str) -> int:
    chosen = [part for setting in settings for part in ("--set", setting)]
    ended = cli.main(["experiment", name, "--profile", "small", "--output-dir", str(folder), *chosen])
    assert missing(folder) == []
    return ended


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def test_whitebox(tmp_path: Path) -> None:
    assert run("whitebox", tmp_path, *SHORT) == 0
    found = read(tmp_path, "djinn_breakpoint_results.json")
    entries = found["token_accuracy"]["entries"]
    assert [entry["layer"] for entry in entries] == [1, 4, 6]
    for entry in entries:
        assert entry["bitwise_equal"]
        assert entry["token_accuracy"] == 100.0
        assert entry["layers_run_before_stop"] == entry["layer"] + 1
        assert entry["layers_run_after_resume"] == 8 - entry["layer"] - 1
        assert entry["stopped_in_decode"]
        assert entry["kv_bytes_resident_during_pause"] > 0 == entry["kv_bytes_resident_after_swap_out"]
        assert entry["checkpoint_size_mb"] > 0
    assert found["kv_bytes_on_wire"] == 0
    assert found["activation_steering"]["output_changed"]
    assert found["concurrent_demo"]["request_b_ended_during_pause"]
    assert found["concurrent_demo"]["request_b_bitwise_equal"]
    demo = found["concurrent_demo"]
    assert demo["paused_sessions_bitwise_equal"]
    assert demo["kv_bytes_resident_during_pause"] == 0
    assert demo["vram_released"] is not False
    table = read(tmp_path, "comparative_results.json")["summary_table"]
    assert table["token_accuracy_percent"] == {"pytorch_eager": 100.0, "vllm": None, "djinn": 100.0}
    assert read(tmp_path, "vllm_results.json")["status"] in ("not_run", "success")
    assert "Token Accuracy" in (tmp_path / "exp3_osdi.log").read_text()
    assert (tmp_path / "report.html").stat().st_size < 500_000
    assert max(map(len, (tmp_path / "report.md").read_text().splitlines())) <= 80


def test_pressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is sampled too seldom, as where others have the cores, leaves the run undecided and fails it not."""
    monkeypatch.setattr(pressure, "LEAST_HERTZ", 1_000_000)
    assert run("pressure", tmp_path) == 3
    found = read(tmp_path, "memory_pressure_results.json")
    assert found["status"] == "undecided"
    assert found["demand_gb"] > found["capacity_gb"] >= found["slab_books_gb"]
    assert found["sessions_alive_max"] >= found["num_sessions_spawned"] == 50
    assert found["outputs_equal_alone"]
    assert all(process > accounted >= used for _, accounted, used, process in found["vram_samples"])
    assert {event["direction"] for event in found["swap_events"]} == {"in", "out"}
    out = [event for event in found["swap_events"] if event["cause"] == "asked"]
    assert len(out) == pressure.LEAVING
    assert {event["bytes"] for event in out} == {max(event["bytes"] for event in found["swap_events"])}
    (speed,) = [claim for claim in CLAIMS if claim.number == 18]
    on_a_card = {"events": found["swap_events"], "device": "cuda:0"}
    assert speed.verdict_on(on_a_card).reason != UNREAD.reason, "each way has its readings"
    assert "SWAP DETECTED" in (tmp_path / "exp3_memory_pressure_final.log").read_text()


def test_resume_latency(tmp_path: Path) -> None:
    assert run("resume-latency", tmp_path, "layers=[4]") in (0, UNDECIDED)
    ours = {row["kv"]: row for row in read(tmp_path, "djinn_resume_latency.json")["results"]}
    assert set(ours) == {"resident", "host", "disk"}
    assert ours["resident"]["data_transferred_mb"] == 0
    assert ours["host"]["data_transferred_mb"] == ours["disk"]["data_transferred_mb"] > 0
    for name in ("recompute", "manual_offload"):
        (row,) = read(tmp_path, f"{name}_latency.json")["results"]
        assert row["num_samples"] == 9


def test_checkpoint_cost(tmp_path: Path) -> None:
    assert run("checkpoint-cost", tmp_path, "repeat=1", "neighbour_tokens=64") == UNDECIDED  # one turn tells nothing
    found = read(tmp_path, "checkpoint_cost_results.json")
    assert found["bytes"] > 0
    assert found["stops"] > 0
    assert all(rate > 0 for rate in found["neighbour_tokens_per_s"].values())


@pytest.mark.alone
def test_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of the windows is one that a busy machine still reaches or leaves undecided, for layers of a fraction of
    the profile's size; the rest is exact."""
    monkeypatch.setattr(flatline, "OF_BOTH", 0.1)
    night = ["agent_sleep_resume.idle_threshold_seconds=0.5", "agent_sleep_resume.sleep_duration_seconds=3"]
    flat = ["pcie_flatline.sample_duration_seconds=1", "pcie_flatline.random_weights.divide_widths=12"]
    flat.append("pcie_flatline.baselines=true")
    ended = run("validation", tmp_path, f"server.port={free_port()}", *flat, *night)
    open_ = read(tmp_path, "pcie_flatline_results.json")["undecided"]
    assert ended == (UNDECIDED if open_ else 0)
    summary = read(tmp_path, "validation_summary.json")
    decided = {"passed": 3 - bool(open_), "undecided": int(bool(open_))}
    assert summary["summary"] == {"total": 3, "failed": 0, "skipped": 0, "errors": 0, "not_run": 0, **decided}
    logits = read(tmp_path, "logit_equivalence_results.json")
    assert logits["bitwise_equal"]
    assert logits["bytes_streamed_per_pass"] == 3 * logits["passes_per_sample"] * [logits["bytes_that_stream"]]
    found = read(tmp_path, "pcie_flatline_results.json")
    copied = sum(nbytes for _, nbytes, *_ in found["copies"])
    assert found["metrics"]["estimated_bytes_loaded"] == copied
    assert copied == found["metrics"]["iterations"] * found["bytes_that_stream"]
    assert len(found["samples_mbps"]) == int(found["metrics"]["elapsed_seconds"] / found["window_seconds"] + 1e-9)
    sides = found["streaming_baselines"]
    assert sides["manual_pinned_offload"]["tokens_equal_to_djinn"]
    for name in ("accelerate_cpu_offload", "accelerate_disk_offload", "vllm"):
        assert sides[name]["status"] == "success" or sides[name]["reason"]
    night_found = read(tmp_path, "agent_sleep_resume_results.json")
    assert night_found["text_equal"]
    assert night_found["swap_events"][0]["cause"] == "idleness"
    log = (tmp_path / "validation.log").read_text()
    assert "idle detected" in log
    assert "SWAP DETECTED" in log
    assert "<svg" in (tmp_path / "report.html").read_text()
