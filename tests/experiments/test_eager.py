"""PyTorch eager beside ours: its abilities while a pass stands are read off its run, not assumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import djinn_jupyter.cli.main as cli
from djinn_jupyter.experiments.baselines import weights
from djinn_jupyter.experiments.baselines.asking import any_prompt
from djinn_jupyter.experiments.baselines.eager import Eager
from tests.faults.inside import Inside
from tests.faults.test_keys import NOTHING

ALONE = ("--skip-djinn", "--skip-vllm")


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


def found(inside: Inside, *settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Eager's file, and its cells of the table."""
    ran = inside.run("whitebox", *NOTHING, *settings, flags=ALONE)
    assert ran.status == 0
    table = ran.file("comparative_results.json")["summary_table"]
    return ran.file("pytorch_eager_results.json"), {row: cells["pytorch_eager"] for row, cells in table.items()}


def test_a_request_beside_a_pause_that_ends_is_one_that_it_can_run(inside: Inside) -> None:
    file, cells = found(inside)
    metrics = file["metrics"]
    assert (metrics["request_b_tokens"], metrics["layers_run_before_stop"]) == (3, 3)
    assert metrics["vram_held_during_pause_gb"] > metrics["vram_before_pause_gb"] == metrics["weights_gb"]
    assert file["conclusion"] == {
        "vram_released": False,
        "allows_concurrent_requests": True,
        "requires_full_gpu_for_pause": True,
    }
    assert (cells["breakpoint_support"], cells["concurrent_requests"]) == (True, True)


def test_without_room_beside_a_pause_it_cannot(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*asked: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(weights, "greedy", full)
    file, cells = found(inside)
    assert (file["metrics"]["request_b_latency_ms"], cells["concurrent_requests"]) == (None, False)
    assert "metrics.request_b_latency_ms" in file["reasons"]


def test_a_stop_that_runs_on_is_none(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Eager._stopped_after
    monkeypatch.setattr(Eager, "_stopped_after", lambda self, layer, *others: stop(self, 7, *others))
    assert found(inside)[1]["breakpoint_support"] is False


def test_the_prompt_is_as_long_as_ours_in_every_vocabulary() -> None:
    assert len(any_prompt(512)) == 512
    assert {*any_prompt(512)} <= {*range(32)}


def test_its_keys_are_those_of_the_file(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, asked_for = Eager.pause, []

    def noted(self: Eager, tokens: list[int], **asked: Any) -> dict[str, Any]:
        asked_for.append((len(tokens), asked["seconds"]))
        return pause(self, tokens, **asked)

    monkeypatch.setattr(Eager, "pause", noted)
    prefix = "experiment."
    keys = {"breakpoints.layers": "[5]", "concurrent_demo.pause_duration_seconds": "0.03", "inference.input_length": 24}
    file, _ = found(inside, *(f"{prefix}{key}={value}" for key, value in keys.items()))
    assert (file["breakpoint_layer"], file["metrics"]["layers_run_before_stop"]) == (5, 6)
    assert file["pause_duration_seconds"] == 0.03
    assert asked_for == [(24, 0.03)]


def test_what_is_required_of_ours_is_not_passed_by_leaving_it_out(inside: Inside) -> None:
    ran = inside.run("whitebox", flags=ALONE)
    assert ran.status == 1
    for key in ("output_equivalence", "steering_effect", "concurrent_success"):
        assert f"validation.require_{key} is set, and --skip-djinn leaves out what it judges." in ran.report


def test_one_side_at_least_is_left_in(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    skips = ("--skip-pytorch", "--skip-vllm", "--skip-djinn")
    assert cli.main(["experiment", "whitebox", "--profile", "small", "--output-dir", str(tmp_path), *skips]) == 1
    assert capsys.readouterr().err == "djinn: All three sides are skipped; leave at least one in.\n"
    assert not list(tmp_path.glob("*.json"))
