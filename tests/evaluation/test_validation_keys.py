"""Every key of a validation file changes the run: the engine's options, the measurement, the verdict or the files.

A key without an entry here fails. Engines and baselines are seen at the seam where a run opens them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine
from djinn_evaluation.configuration.reading import keys_of, read
from djinn_evaluation.configuration.sections import ValidationFile
from djinn_evaluation.course import Course
from djinn_evaluation.streaming.sides import Subject
from djinn_evaluation.validation import experiment, flatline, logit_equivalence, opening, sleep
from djinn_evaluation.validation.flatline import HandStreamed, MovedBytes, TimeSpan
from djinn_jupyter.errors import SlabFull
from tests.evaluation.test_flatline import MACHINE, PLAIN, flow
from tests.evaluation.test_validation import night_of, sample

SMALL, WEIGHTS = "validation_small.yaml", 700 << 20
LOGITS, FLAT, SLEEP = "logit_equivalence", "pcie_flatline", "agent_sleep_resume"
BY_HAND = HandStreamed(
    weights=WEIGHTS,
    device="cpu",
    copies=[MovedBytes(begun=0.0, seconds=0.05, nbytes=1 << 20), MovedBytes(begun=0.05, seconds=0.05, nbytes=4 << 20)],
    spans=[TimeSpan(begun=0.0, ended=0.1)],
)
Patch = pytest.MonkeyPatch
Seen = Callable[[list[str], Patch, Path], Any]


class Opened(Exception):
    """A run came to the point under test; the arguments are the values seen there."""


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


def file(settings: list[str]) -> Any:
    return read(SMALL, ValidationFile, settings)


def course(folder: Path) -> Course:
    return Course(folder=folder, log=logging.getLogger("test"))


def until_opened(name: str, settings: list[str], folder: Path) -> tuple[Any, ...]:
    asked = file(settings)
    with pytest.raises(Opened) as came:
        experiment.MODULES[name].run(course(folder), asked, getattr(asked, name))
    return came.value.args


def with_baselines(patch: Patch) -> None:
    @contextmanager
    def plain(module: str) -> Iterator[Any]:
        yield SimpleNamespace(ask=lambda verb, **more: {"weight_bytes": WEIGHTS, "device": "cpu"})

    patch.setattr(logit_equivalence, "baseline", plain)
    patch.setattr(flatline, "by_hand", lambda *asked: nullcontext(BY_HAND))
    patch.setattr(flatline, "baseline", lambda module: nullcontext())
    drawn = lambda course, shape, hand: nullcontext(Subject(name="drawn", source=str(shape)))  # noqa: E731
    patch.setattr(flatline, "subject", drawn)
    patch.setattr(opening, "endpoint", lambda server: f"{server.host}:{server.port}")


def with_engine(patch: Patch, module: Any, session: Callable[..., Any] | None = None) -> None:
    """An engine of which little can be asked."""

    @contextmanager
    def engine_for(course: Course, model: str, **options: Any) -> Iterator[Any]:
        weights = SimpleNamespace(bytes_streamed_per_pass=1)
        yield SimpleNamespace(
            entry=None,
            wake=lambda: SimpleNamespace(weights=weights),
            session=session or raising(Opened()),
            description=SimpleNamespace(device="cpu"),
            statistics=lambda: SimpleNamespace(device_bytes_total=None),
        )

    with_baselines(patch)
    patch.setattr(module, "engine_for", engine_for)


# --------------------------------------------------------------------------------------------- what is looked at


def started(name: str) -> Seen:
    """The model and the options that the engine of a test is started with."""

    def see(settings: list[str], patch: Patch, folder: Path) -> Any:
        def engine_for(course: Course, model: str, **options: Any) -> Any:
            raise Opened(model, options)

        with_baselines(patch)
        for module in (logit_equivalence, flatline, sleep):
            patch.setattr(module, "engine_for", engine_for)
        return until_opened(name, settings, folder)

    return see


def waited(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return how long an answer is waited for."""
    with_engine(patch, sleep)
    patch.setattr(sleep, "_night", lambda course, engine, wanted, timeout: raising(Opened(timeout))())
    return until_opened(SLEEP, settings, folder)


def waited_in(name: str) -> Seen:
    """Return how long the tests that stream wait for an answer."""

    def see(settings: list[str], patch: Patch, folder: Path) -> Any:
        module, step = (flatline, "_flow") if name == FLAT else (logit_equivalence, "_ours")
        with_engine(patch, module, lambda *asked, **more: SimpleNamespace(run=lambda *asked, **more: None))
        patch.setattr(module, "prompt_of", lambda *asked, **more: [1], raising=False)
        patch.setattr(module, step, lambda course, engine, wanted, timeout, *more: raising(Opened(timeout))())
        return until_opened(name, settings, folder)

    return see


def prompts(settings: list[str], patch: Patch, folder: Path) -> Any:
    drawn: list[int] = []
    with_engine(patch, logit_equivalence)
    patch.setattr(logit_equivalence, "prompt_of", lambda engine, length, seed: drawn.append(seed))
    until_opened(LOGITS, settings, folder)
    return len(drawn)


def beside(settings: list[str], patch: Patch, folder: Path) -> Any:
    with_engine(patch, flatline)
    patch.setattr(flatline, "_flow", lambda *asked: flow(MACHINE.prefetched()))
    patch.setattr(flatline, "beside", lambda *asked: {"somebody": 1})
    asked = file(settings)
    return flatline.run(course(folder), asked, asked.pcie_flatline)["streaming_baselines"] == {"somebody": 1}


def cores(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return whether the cores are asked for before the rounds."""
    engine: Any = SimpleNamespace(
        wake=lambda: SimpleNamespace(weights=SimpleNamespace(residency="streamed")),
        session=lambda *asked, **more: SimpleNamespace(run=lambda *asked, **more: None),
        entry=SimpleNamespace(pid=1, is_afar=False),
    )
    wanted = file(settings).pcie_flatline
    patch.setattr(flatline, "arrived", lambda *asked: ())
    patch.setattr(flatline, "cores_first", lambda pids, *, asked: raising(Opened(asked))())
    with pytest.raises(Opened) as came:
        flatline._flow(course(folder), engine, wanted, 1.0, None, "a model")
    return came.value.args


def attempts(settings: list[str], patch: Patch, folder: Path) -> Any:
    patch.setattr(sleep, "RETRY_SECONDS", 0.0)
    night, agent = sleep.Night(), SimpleNamespace(run=raising(SlabFull("no room")))
    with pytest.raises(SlabFull):
        sleep._resumed(agent, file(settings).agent_sleep_resume, night, 5.0)
    return night.attempts


def logits(off: float) -> Seen:
    """The verdict where one logit, the second likeliest, is larger by so much."""

    def see(settings: list[str], patch: Patch, folder: Path) -> Any:
        plain, ring = np.arange(9, dtype=np.float32), np.arange(9, dtype=np.float32)
        ring[7] += off
        pair = [sample((1,), plain)], [sample((1,), ring, (9,))]
        return logit_equivalence.judge(file(settings).logit_equivalence, *pair, same_device=False, streamed=9)["passed"]

    return see


def bar(*, gpu: bool) -> Seen:
    return lambda settings, patch, folder: flatline.bar_of(file(settings).pcie_flatline, BY_HAND, gpu=gpu).required


def long_enough(settings: list[str], patch: Patch, folder: Path) -> Any:
    low = replace(flatline.bar_of(file(settings).pcie_flatline, BY_HAND, gpu=True), required=0.0, fastest=PLAIN)
    five_seconds = flow(MACHINE.prefetched(), spans=(TimeSpan(begun=1e9, ended=1e9 + 5.0),))
    return flatline.judge(file(settings).pcie_flatline, low, five_seconds, limit_gb=None)["passed"]


def slept(settings: list[str], patch: Patch, folder: Path) -> Any:
    return sleep.judge(file(settings).agent_sleep_resume, night_of(), limit_gb=None)["passed"]


def commanded(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Run the command with tests that pass at once. Return the courses seen, the log's first lines, the summaries."""
    seen: list[Any] = []

    def test(course: Course, file: ValidationFile, wanted: Any) -> dict[str, Any]:
        levels = [target.level for target in course.log.handlers]
        seen.append((course.setup.device, levels, course.saves, course.folder.name))
        return {"passed": True, "failures": []}

    for module in experiment.MODULES.values():
        patch.setattr(module, "run", test)
    patch.setattr(experiment, "options_of", lambda course, file: {})
    patch.setattr(machine, "gpus", lambda: ["a card", "another"])
    given = [f"logging.results_dir={json.dumps(str(folder / 'first'))}", *settings]
    assert cli.main(["experiment", "validation", "--profile", "small", *(f"--set={setting}" for setting in given)]) == 0
    (log,) = folder.rglob(experiment.LOG)
    begins = log.read_text().splitlines()[:1]
    log.unlink()
    summaries = [json.loads(found.read_text()) for found in folder.rglob(experiment.SUMMARY)]
    return seen, [line.partition("INFO ")[2] for line in begins], [(s["experiment"], s["results"]) for s in summaries]


def summarised(settings: list[str], patch: Patch, folder: Path) -> Any:
    return experiment._summary(file(settings), {}, 0.0)["experiment"]


# ------------------------------------------------------------------------------------------------------ the keys


@dataclass(frozen=True, slots=True)
class Change:
    """Another value of a key, and where it shows; `beside` are settings of both runs."""

    value: str
    seen: Seen
    beside: tuple[str, ...] = ()


TOLERANT = (f"{LOGITS}.pass_if_predictions_match=false",)
LOOSE = (f"{LOGITS}.tolerance_norm=9", f"{LOGITS}.tolerance_max_diff=9")
NO_FLATLINE = (f"{FLAT}=null",)
CHANGES = {
    "experiment.name": Change("another", commanded),
    "experiment.description": Change("another", commanded),
    "experiment.version": Change("'2.0'", commanded),
    **{f"{name}.enabled": Change("false", commanded) for name in (LOGITS, FLAT, SLEEP)},
    **{f"{name}.model_id": Change("another", started(name)) for name in (LOGITS, FLAT, SLEEP)},
    **{f"{name}.dtype": Change("bfloat16", started(name)) for name in (LOGITS, FLAT, SLEEP)},
    f"{LOGITS}.num_samples": Change("4", prompts),
    f"{LOGITS}.tolerance_norm": Change("0.01", logits(0.05), TOLERANT),
    f"{LOGITS}.tolerance_max_diff": Change("0.01", logits(0.05), TOLERANT),
    f"{LOGITS}.pass_if_predictions_match": Change("false", logits(1.5), LOOSE),
    f"{FLAT}.random_weights.divide_widths": Change("7", started(FLAT)),
    f"{FLAT}.random_weights.layers": Change("9", started(FLAT)),
    f"{FLAT}.ring_buffer_gb": Change("0.1", started(FLAT)),
    f"{FLAT}.vram_limit_gb": Change("0.46", started(FLAT)),
    f"{FLAT}.sample_duration_seconds": Change("6", long_enough),
    f"{FLAT}.min_sustained_bandwidth_mb_per_s": Change("10", bar(gpu=True)),
    f"{FLAT}.sustained_ratio": Change("0.5", bar(gpu=False)),
    f"{FLAT}.cores_first": Change("false", cores),
    f"{FLAT}.baselines": Change("true", beside),
    f"{SLEEP}.idle_threshold_seconds": Change("2.0", slept),
    f"{SLEEP}.sleep_duration_seconds": Change("31.0", slept),
    f"{SLEEP}.host_swap_pool_gb": Change("0.2", started(SLEEP)),
    f"{SLEEP}.max_retries": Change("2", attempts),
    "ring_buffer.capacity_gb": Change("0.002", started(LOGITS)),
    "server.host": Change("127.0.0.2", started(SLEEP)),
    "server.port": Change("7000", started(SLEEP)),
    "server.timeout_seconds": Change("5", waited),
    "hardware.vram_limit_gb": Change("0.0027", started(LOGITS), NO_FLATLINE),
    "hardware.gpu_device": Change("1", commanded),
    "hardware.enforce_vram_limit": Change("false", started(LOGITS), (*NO_FLATLINE, "hardware.vram_limit_gb=0.0027")),
    "logging.level": Change("WARNING", commanded),
    "logging.save_results": Change("false", commanded),
    "logging.results_dir": Change("{folder}/other", commanded),
    "logging.verbose": Change("true", commanded),
}


# Where a key is read once more.
BESIDE = [
    ("experiment.name", Change("another", summarised)),
    *(("server.timeout_seconds", Change("5", waited_in(name))) for name in (LOGITS, FLAT)),
    *((key, Change("7000", started(name))) for key in ("server.port",) for name in (LOGITS, FLAT)),
]


CASES = [*((key.path, CHANGES[key.path]) for key in keys_of(ValidationFile)), *BESIDE]


@pytest.mark.parametrize(("key", "change"), [pytest.param(key, change, id=key) for key, change in CASES])
def test_a_key_changes_the_run(key: str, change: Change, tmp_path: Path, monkeypatch: Patch) -> None:
    found = []
    for number, setting in enumerate(([], [f"{key}={change.value}"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patch:
            given = [*change.beside, *(text.format(folder=folder) for text in setting)]
            found.append(change.seen(given, patch, folder))
    assert found[0] != found[1]
