"""PyTorch eager beside ours: its abilities while a pass stands are read off its run, not assumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import djinn_jupyter.cli.main as cli
from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.asking import any_prompt
from djinn_evaluation.baselines.eager import Eager
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
    assert metrics["vram_held_during_pause_gb"] == metrics["vram_at_stop_gb"] > metrics["vram_before_pause_gb"]
    assert metrics["vram_before_pause_gb"] == metrics["weights_gb"]
    assert metrics["paused_sessions"] == 2
    assert file["conclusion"] == {
        "vram_released": False,
        "allows_concurrent_requests": True,
        "requires_full_gpu_for_pause": True,
    }
    assert (cells["breakpoint_support"], cells["concurrent_requests"]) == (True, True)


def test_its_accuracy_and_its_steering_are_measured(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop whose kept hidden state is not put back would show in the accuracy, as steering does."""
    steered = ("experiment.activation_steering.enabled=true", "experiment.activation_steering.modification_factor=-3")
    file, cells = found(inside, *steered)
    assert (cells["token_accuracy_percent"], cells["activation_steering"]) == (100.0, True)
    assert 0 < file["metrics"]["steering_token_diff_percent"] <= 100
    go_on = Eager._from_layer
    monkeypatch.setattr(Eager, "_from_layer", lambda self, layer, hidden, run: go_on(self, layer, -hidden, run))
    assert found(inside)[1]["token_accuracy_percent"] < 100


def test_what_eager_lets_go_is_read_off_the_counter(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it to drop what its stops hold, the file would say so."""
    stand = Inside.stand

    def dropped(self: Inside, counter: Any, going_on: Any) -> Any:
        self._eager.standing.clear()
        return stand(self, counter, going_on)

    monkeypatch.setattr(Inside, "stand", dropped)
    file, cells = found(inside)
    assert (file["conclusion"]["vram_released"], cells["vram_released"]) == (True, True)
    assert file["metrics"]["vram_at_stop_gb"] > file["metrics"]["vram_held_during_pause_gb"]


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
    stand, asked_for = Eager.stand, []

    def noted(self: Eager, prompts: list[list[int]], **asked: Any) -> dict[str, Any]:
        asked_for.append([len(tokens) for tokens in prompts])
        return stand(self, prompts, **asked)

    monkeypatch.setattr(Eager, "stand", noted)
    prefix = "experiment."
    keys = {"breakpoints.layers": "[5]", "concurrent_demo.pause_duration_seconds": "0.03", "inference.input_length": 24}
    keys |= {"concurrent_demo.paused_sessions": 3}
    file, _ = found(inside, *(f"{prefix}{key}={value}" for key, value in keys.items()))
    assert (file["breakpoint_layer"], file["metrics"]["layers_run_before_stop"]) == (5, 6)
    assert file["pause_duration_seconds"] == 0.03
    assert asked_for == [[24, 24, 24]]


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
