"""Configuration files with no effect, the fault; so each key of a file is changed, and the run is another one.

A key without an entry here fails; so does an entry whose key changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_evaluation.baselines.eager import Eager
from djinn_evaluation.configuration.reading import keys_of
from djinn_evaluation.configuration.sections import CheckpointCost, ResumeLatency, Whitebox
from djinn_evaluation.whitebox import experiment as whitebox
from tests.faults.inside import OURS_ALONE, Inside, Ran

pytestmark = pytest.mark.drawn

Patch = pytest.MonkeyPatch
E, V = "experiment", "validation"
NO_TRIALS = (f"{E}.breakpoints.enabled=false", f"{V}.require_output_equivalence=false")
NOT_STEERED = (f"{E}.activation_steering.enabled=false", f"{V}.require_steering_effect=false")
NO_OTHER = (f"{E}.concurrent_demo.enabled=false", f"{V}.require_concurrent_success=false")
NOTHING = (*NO_TRIALS, *NOT_STEERED, *NO_OTHER)
TRIALS = (f"{E}.breakpoints.layers=[2]", *NOT_STEERED, *NO_OTHER)
STEERING = (*NO_TRIALS, *NO_OTHER, f"{V}.require_steering_effect=false")
OTHER = (*NO_TRIALS, *NOT_STEERED)
PRESSURE = (f"{E}.memory_pressure_test.enabled=true", f"{E}.memory_pressure_test.num_sessions=2")
CARD = (280_736 + 20 * 16_384) / 2**30  # twenty pages beside the weights; six sessions of four need more
PRESSED = (PRESSURE[0], f"{E}.memory_pressure_test.num_sessions=6", f"{E}.inference.input_length=60")
PRESSED = (*PRESSED, f"hardware.vram_limit_gb={CARD}")


def no_fault(patch: Patch) -> None: ...


def one_prediction_is_wrong(patch: Patch) -> None:
    changed(patch, lambda found: {"predicted": [found["predicted"][0] + 1, *found["predicted"][1:]]})


def the_bits_are_wrong(patch: Patch) -> None:
    changed(patch, lambda found: {"digest": "others"})


def changed(patch: Patch, change: Callable[[Any], dict[str, Any]]) -> None:
    """Let plain Hugging Face come to something else."""
    reference = Eager.reference
    patch.setattr(Eager, "reference", lambda *args, **kwargs: _with(reference(*args, **kwargs), change))


def _with(found: dict[str, Any], change: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    return {**found, **change(found)}


def steering_does_nothing(patch: Patch) -> None:
    scale = dj.scale
    patch.setattr(dj, "scale", lambda factor: scale(1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """`shows` of a run differs by `setting`. Both runs have `base` in common, and a `fault` where only that shows the
    difference."""

    setting: str
    shows: Callable[[Ran], object]
    base: tuple[str, ...] = ()
    fault: Callable[[Patch], None] = no_fault
    name: str = "whitebox"


class Runs:
    """Runs that several keys are compared with, made once."""

    def __init__(self) -> None:
        self._made: dict[Any, Ran] = {}

    def of(self, inside: Inside, effect: Effect) -> Ran:
        key = (effect.name, effect.base, effect.fault)
        if key not in self._made:
            flags = OURS_ALONE if effect.name == "whitebox" else ()
            self._made[key] = inside.run(effect.name, *effect.base, flags=flags)
        return self._made[key]


@pytest.fixture(scope="module")
def runs() -> Runs:
    return Runs()


def found(section: str, field: str | None = None) -> Callable[[Ran], object]:
    def read(ran: Ran) -> object:
        part = ran.file("djinn_breakpoint_results.json")[section]
        return part if field is None else part[field]

    return read


def entries(field: str) -> Callable[[Ran], object]:
    return lambda ran: [
        entry[field] for entry in ran.file("djinn_breakpoint_results.json")["token_accuracy"]["entries"]
    ]


def pressed(field: str) -> Callable[[Ran], object]:
    return lambda ran: ran.file("memory_pressure_results.json")[field]


def resumed(field: str, side: str = "djinn_resume") -> Callable[[Ran], object]:
    return lambda ran: [row[field] for row in ran.file(f"{side}_latency.json")["results"]]


def cost(field: str) -> Callable[[Ran], object]:
    return lambda ran: ran.file("checkpoint_cost_results.json")[field]


def overheads(ran: Ran) -> object:
    return len(ran.file("djinn_breakpoint_results.json")["os_overhead"]["pairs_ms"])


def status(ran: Ran) -> object:
    return ran.status


def model_asked(ran: Ran) -> object:
    return ran.engines[0]["model"]


def asked_for(option: str) -> Callable[[Ran], object]:
    return lambda ran: [engine[option] for engine in ran.engines]


def said(sentence: str) -> Callable[[Ran], object]:
    return lambda ran: sentence in ran.said


def written(name: str) -> Callable[[Ran], object]:
    return lambda ran: (ran.folder / name).exists()


def of_resume(setting: str, shows: Callable[[Ran], object], *base: str) -> Effect:
    return Effect(name="resume-latency", setting=setting, shows=shows, base=base)


def of_cost(setting: str, shows: Callable[[Ran], object], *base: str) -> Effect:
    return Effect(name="checkpoint-cost", setting=setting, shows=shows, base=("repeat=1", *base))


def of_pressure(setting: str, shows: Callable[[Ran], object], *base: str) -> Effect:
    return Effect(name="pressure", setting=setting, shows=shows, base=base or PRESSED)


def of_whitebox(
    setting: str, shows: Callable[[Ran], object], *base: str, fault: Callable[[Patch], None] = no_fault
) -> Effect:
    return Effect(setting=setting, shows=shows, base=base, fault=fault)


OURS = ("skip_recompute=true", "skip_offload=true")
WHITEBOX = {
    "model.name": of_whitebox("other", model_asked, *NOTHING),
    "model.num_layers": of_whitebox("7", said("model.num_layers is 7; "), *NOTHING),
    "model.source": of_whitebox("elsewhere", said("model.source: "), *NOTHING),
    "model.dtype": of_whitebox("bfloat16", found("memory_breakdown", "model_weights_gb"), *NOTHING),
    "model.page_positions": of_whitebox("8", found("memory_breakdown", "kv_cache_per_session_gb"), *NOTHING),
    f"{E}.num_trials": of_whitebox("2", entries("trial"), *TRIALS),
    f"{E}.overhead_pairs": of_whitebox("2", overheads, *TRIALS),
    f"{E}.breakpoints.enabled": of_whitebox(
        "false", found("token_accuracy"), *TRIALS, f"{V}.require_output_equivalence=false"
    ),
    f"{E}.breakpoints.layers": of_whitebox("[5]", entries("layers_run_before_stop"), *TRIALS),
    f"{E}.inference.input_length": of_whitebox("24", found("baseline_prompt"), *NOTHING),
    f"{E}.inference.context_tokens": of_whitebox(
        "1", entries("token_accuracy"), *TRIALS, fault=one_prediction_is_wrong
    ),
    f"{E}.inference.token_accuracy_threshold": of_whitebox("99", status, *TRIALS, fault=one_prediction_is_wrong),
    f"{E}.inference.continuation_tokens": of_whitebox("4", found("concurrent_demo", "request_b_tokens"), *OTHER),
    f"{E}.activation_steering.enabled": of_whitebox("false", found("activation_steering"), *STEERING),
    f"{E}.activation_steering.modification_type": of_whitebox("rotate", said("modification_type: "), *NOTHING),
    f"{E}.activation_steering.modification_factor": of_whitebox(
        "-3", found("activation_steering", "token_diff_percent"), *STEERING
    ),
    f"{E}.activation_steering.steering_layer": of_whitebox(
        "1", lambda ran: ran.times("breakpoint", "resid_post.1"), *STEERING
    ),
    f"{E}.concurrent_demo.enabled": of_whitebox(
        "false", found("concurrent_demo"), *OTHER, f"{V}.require_concurrent_success=false"
    ),
    f"{E}.concurrent_demo.request_b_during_pause": of_whitebox(
        "false", found("concurrent_demo", "request_b_tokens"), *OTHER
    ),
    f"{E}.concurrent_demo.pause_duration_seconds": of_whitebox(
        "0.02", found("concurrent_demo", "pause_least_seconds"), *OTHER
    ),
    f"{E}.concurrent_demo.paused_sessions": of_whitebox("3", found("concurrent_demo", "paused_sessions"), *OTHER),
    f"{E}.concurrent_demo.idle_seconds": of_whitebox("0.3", lambda ran: ran.engines[-1]["idle_swap_seconds"], *OTHER),
    f"{E}.concurrent_demo.until_full_gb": of_whitebox(
        str(CARD), found("concurrent_demo", "sessions_until_full"), *OTHER
    ),
    f"{E}.concurrent_demo.until_full_sessions": of_whitebox(
        "3", found("concurrent_demo", "sessions_until_full"), *OTHER, f"{E}.concurrent_demo.until_full_gb={CARD}"
    ),
    f"{E}.memory_pressure_test.enabled": of_whitebox(
        "true", written("memory_pressure_results.json"), *NOTHING, PRESSURE[1]
    ),
    f"{E}.memory_pressure_test.num_sessions": of_pressure("7", pressed("sessions_alive_max")),
    f"{E}.memory_pressure_test.session_pause_layer": of_pressure(
        "5", lambda ran: ran.times("breakpoint", "resid_post.5")
    ),
    f"{V}.require_output_equivalence": of_whitebox("false", status, *TRIALS, fault=the_bits_are_wrong),
    f"{V}.require_steering_effect": of_whitebox("true", status, *STEERING, fault=steering_does_nothing),
    f"{V}.require_concurrent_success": of_whitebox(
        "false", status, *OTHER, f"{E}.concurrent_demo.request_b_during_pause=false"
    ),
    f"{V}.require_memory_pressure_success": of_whitebox("true", status, *NOTHING, *PRESSURE),
    "hardware.vram_limit_gb": of_pressure(str(CARD), pressed("capacity_imposed"), *PRESSURE),
    "hardware.host_limit_gb": of_pressure("0.01", said("there are 10.24 MiB")),
    "duration": of_whitebox("0.000000001", said("has reached its limit"), *OTHER),
}
RESUME = {
    "model": of_resume("other", model_asked, *OURS),
    "dtype": of_resume("bfloat16", resumed("data_transferred_mb"), *OURS),
    "layers": of_resume("[5]", lambda ran: ran.times("breakpoint", "resid_post.5"), *OURS),
    "max_length": of_resume("40", resumed("data_transferred_mb"), *OURS),
    "warmup": of_resume("2", lambda ran: ran.baselines.count(("eager", "recompute")), "skip_djinn=true"),
    "repeat": of_resume("3", resumed("num_samples"), *OURS),
    "skip_recompute": of_resume("true", written("recompute_latency.json"), "skip_djinn=true"),
    "skip_offload": of_resume("true", written("manual_offload_latency.json"), "skip_djinn=true"),
    "skip_djinn": of_resume("true", written("djinn_resume_latency.json")),
}
COST = {
    "model": of_cost("other", model_asked),
    "dtype": of_cost("bfloat16", cost("bytes")),
    "layer": of_cost("5", lambda ran: ran.times("breakpoint", "resid_post.5")),
    "max_length": of_cost("60", cost("bytes")),
    "neighbour_tokens": of_cost("25", lambda ran: ran.times("run", 25)),
    "stop_interval_seconds": of_cost("60", cost("stops"), "neighbour_tokens=50"),
    "repeat": of_cost("2", lambda ran: ran.times("run", 24)),
    "host_limit_gb": of_cost("0.01", lambda ran: ran.engines[0]["host_memory"]),
}
# Keys of one file that two experiments read, where the other one reads them.
BESIDE = [
    ("model.num_layers", of_pressure("7", said("model.num_layers is 7; "))),
    ("model.dtype", of_pressure("bfloat16", asked_for("dtype"))),
    ("model.page_positions", of_pressure("8", asked_for("page_positions"))),
    (f"{E}.inference.input_length", of_pressure("40", pressed("demand_gb"))),
    (f"{E}.inference.continuation_tokens", of_pressure("5", lambda ran: ran.times("run", 5))),
    ("hardware.host_limit_gb", of_pressure("0.01", asked_for("host_memory"))),
    ("duration", of_pressure("0.000000001", said("has reached its limit"))),
    ("hardware.host_limit_gb", of_whitebox("0.01", asked_for("host_memory"), *NOTHING)),
    ("hardware.vram_limit_gb", of_whitebox(str(CARD), asked_for("device_memory"), *NOTHING)),
]
TABLES = {Whitebox: WHITEBOX, ResumeLatency: RESUME, CheckpointCost: COST}
ALL = [*(one for table in TABLES.values() for one in table.items()), *BESIDE]
CASES = [pytest.param(key, effect, id=f"{effect.name}-{key}") for key, effect in ALL]


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_every_key_is_in_the_table(kind: Any) -> None:
    assert {key.path for key in keys_of(kind)} == {*TABLES[kind], "output_dir"}


@pytest.mark.parametrize(("key", "effect"), CASES)
def test_a_key_changes_what_is_done(inside: Inside, runs: Runs, key: str, effect: Effect) -> None:
    assert changes_something(inside, runs, key, effect)


def changes_something(inside: Inside, runs: Runs, key: str, effect: Effect) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        effect.fault(patch)
        before = effect.shows(runs.of(inside, effect))
        flags = OURS_ALONE if effect.name == "whitebox" else ()
        after = effect.shows(inside.run(effect.name, *effect.base, f"{key}={effect.setting}", flags=flags))
    return before != after


def test_output_dir_is_where_the_results_lie(inside: Inside, tmp_path: Path) -> None:
    inside.run("whitebox", *NOTHING, f"output_dir={tmp_path / 'elsewhere'}", flags=OURS_ALONE, placed=False)
    assert (tmp_path / "elsewhere" / "report.html").exists()


def test_keys_without_an_effect(inside: Inside, monkeypatch: Patch) -> None:
    """The file is read, and the run uses its own numbers."""
    trials, key = whitebox.run_trials, f"{E}.num_trials"
    fixed: list[Any] = []

    def as_ever(course: Any, engine: Any, file: Any, *others: Any) -> Any:
        fixed[:] = fixed or [file]
        return trials(course, engine, fixed[0], *others)

    monkeypatch.setattr(whitebox, "run_trials", as_ever)
    assert not changes_something(inside, Runs(), key, WHITEBOX[key])
