"""The steps of the evaluation and of the claims' runs under pressure, by `djinn experiment all --profile gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu import shapes
from djinn_evaluation.benchmarks.gpu.steps import EXPERIMENTS, Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Bar, Figure, Result, Setting, Spread, at_least, at_most
from djinn_evaluation.commands.experiment import OFFERS, steps_of
from djinn_evaluation.pressure import FILE
from djinn_jupyter.units import GIB

RESERVE: Final = 30  # seconds, to start a turn and to end an engine
LIKELY: Final = 200  # seconds that an experiment may take; with less left it begins in another turn


def run_evaluation(setting: Setting) -> Result:
    """The step of the evaluation: `djinn experiment all --profile gpu` on 13B-shaped weights; the small profile below
    the usual size, but for experiments that have settings for tiny weights.

    Each experiment is run on its own, so that the step goes on with the next one where its time was over. Their
    result files and reports lie beside this step's."""
    return results_of("evaluation", setting)


def results_of(
    name: str,
    setting: Setting,
    only: Collection[str] | None = None,
    *,
    into: str | None = None,
    likely: float = LIKELY,
    tiny: Callable[[dict[str, Any]], Sequence[str]] | None = None,
) -> Result:
    """Run the experiments of the profile, or those `only`, which have no verdict yet; return the result of that name.
    Their files are in the folder `into`, else in one of that name. `tiny` returns the keys that make the profile gpu
    one for tiny weights, KEY=VALUE each, from the shape. Raises Unfinished where fewer than `likely` seconds are left,
    or one is cut: it is run again in another turn."""
    begun, folder = monotonic(), (setting.results or setting.home) / (into or name)
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept.of(name, setting, EXPERIMENTS)
    profile = "small" if setting.quick and tiny is None else "gpu"
    runs = [one.name for one in steps_of(OFFERS) if profile in one.profiles and (only is None or one.name in only)]
    arguments = ["--profile", profile]
    if profile == "gpu":
        config = shapes.shape(shapes.THIRTEEN, shapes.scale_of(setting))
        keys = tiny(config) if tiny is not None and setting.quick else ()
        arguments += ["--model", str(shapes.saved(config)), *(word for key in keys for word in ("--set", key))]

    def how_far() -> str:
        return f"{len(kept.found)} of {len(runs)} experiments"

    def figures() -> list[Figure]:
        return [_figure_of_evaluation(one, kept.found[one]) for one in runs if one in kept.found]

    for one in runs:
        if one in kept.found:
            continue
        setting.so_far(figures(), how_far())
        left = setting.seconds - RESERVE - (monotonic() - begun)
        if left < likely:
            raise Unfinished(how_far())
        if (told := verdict(one, arguments, folder, left)) is None:
            raise Unfinished(f"{how_far()}; {one} was cut after {left:.0f} s")
        kept.add(one, told)
    return Result(benchmark=name, settings={"verdicts": kept.found}, figures=tuple(figures()))


def verdict(name: str, arguments: list[str], folder: Path, seconds: float) -> str | None:
    """Run one experiment; return PASS, FAIL, or why there is no verdict. None where the seconds were over."""
    command = [sys.executable, "-m", "djinn_jupyter.cli.main", "experiment", "all", "--only", name]
    command += [*arguments, "--output-dir", str(folder)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # upon which it ends its engine, and writes its report
            process.communicate()
            return None
        finally:
            process.terminate()  # a turn that is ended waits for it
    verdicts = [line.removeprefix(name).strip() for line in told.splitlines() if line.split(" ")[0] == name]
    return verdicts[-1] if verdicts else (errors.strip().rpartition("\n")[2] or f"it ended with {process.returncode}")


def _figure_of_evaluation(name: str, told: str) -> Figure:
    judged = told in ("PASS", "FAIL")
    return Figure(
        name=f"experiments that pass: {name}",
        unit="of them",
        value=Spread.of([float(told == "PASS")]) if judged else None,
        bar=at_least(1.0),
        not_run=None if judged else told,
    )


FOLDER: Final = "pressure"  # of both runs: the claims read them together
JUDGED: Final = ("PASS", "FAIL", "UNDECIDED")
TINY_SESSIONS, TINY_LENGTH = 50, 24 * shapes.TINY_PAGE


def run_pressure(setting: Setting) -> Result:
    """The step of the claims' run under pressure: 50 sessions of 2,048 tokens on 13B-shaped weights that the card
    cannot hold at the same time, by the experiment `pressure` of the profile gpu. Below the usual size its file is
    read too, with keys for tiny weights."""
    return measured("pressure", "pressure", setting)


def measured(name: str, experiment: str, setting: Setting) -> Result:
    """Run one of the two; return its result. Raises Unfinished, keeping the figures so far, where it is cut."""
    begun, file = time.time(), (setting.results or setting.home) / FOLDER / experiment / FILE
    try:
        found = results_of(name, setting, (experiment,), into=FOLDER, likely=0, tiny=_tiny)
    except Unfinished as how_far:
        if file.exists() and file.stat().st_mtime >= begun:
            setting.so_far(figures_of(file), str(how_far))
        raise
    judged = found.settings["verdicts"][experiment].startswith(JUDGED)
    return replace(found, figures=(*found.figures, *figures_of(file))) if judged else found


def _tiny(config: dict[str, Any]) -> list[str]:
    """Return keys for a shape of few layers: shorter sessions, two thirds of which fit on the device."""
    layers = config["num_hidden_layers"]
    pages = TINY_SESSIONS * TINY_LENGTH * shapes.per_position(config)
    return [
        f"model.num_layers={layers}",
        f"model.page_positions={shapes.TINY_PAGE}",
        f"experiment.breakpoints.layers=[{layers // 2}]",
        f"experiment.inference.input_length={TINY_LENGTH}",
        f"experiment.inference.context_tokens={TINY_LENGTH}",
        f"experiment.activation_steering.steering_layer={layers // 2}",
        f"experiment.memory_pressure_test.session_pause_layer={layers // 2}",
        f"hardware.vram_limit_gb={(shapes.weight_bytes(config) + 2 * pages // 3) / GIB}",
    ]


def figures_of(file: Path) -> tuple[Figure, ...]:
    """Return the figures in the experiment's file so far."""
    fields = json.loads(file.read_text())
    asked, resumed = fields["num_sessions_requested"], fields.get("sessions_resumed")
    counts = [
        ("alive at the same time", "sessions_alive_max", asked),
        (f"outputs equal to the session's alone, of {resumed} resumed", "outputs_equal", resumed),
    ]
    found = [
        _figure_of_pressure(fields, what, key, at_least(bar))
        for what, key, bar in counts
        if fields.get(key) is not None
    ]
    return (*found, *_of_memory(fields), *_speeds(fields))


def _figure_of_pressure(fields: dict[str, Any], what: str, key: str, bar: Bar) -> Figure:
    return Figure(name=f"sessions: {what}", unit="of them", value=Spread.of([float(fields[key])]), bar=bar)


def _of_memory(fields: dict[str, Any]) -> Iterator[Figure]:
    """Yield the most that was counted, as a share of what it must not exceed; a run that was cut has no such count."""
    by_driver = [gigabytes for _, gigabytes in fields.get("driver_samples") or ()]
    for who, found, most in (
        ("the engine counted", [fields["slab_books_gb"]], fields["capacity_gb"]),
        ("the driver saw", by_driver, fields.get("card_gb")),
    ):
        value = Spread.of([max(found) / most]) if most and found and None not in found else None
        why = fields.get("reasons", {}).get("driver_samples") or "the run did not come to its end"
        name = f"sessions: the most that {who}, of what there was"
        yield Figure(name=name, unit="x", value=value, bar=at_most(1.0), not_run=None if value else why)


def _speeds(fields: dict[str, Any]) -> Iterator[Figure]:
    """Yield the speed of the moves in each direction that copied bytes, by the mover's own seconds."""
    events = fields.get("swap_events") or ()
    for way in ("out", "in"):
        speeds = [e["gb_per_s"] * GIB / 1e9 for e in events if e["direction"] == way and e["gb_per_s"] is not None]
        why = None if speeds else "no such move copied bytes"
        yield Figure(name=f"sessions: moves {way}", unit="GB/s", value=Spread.of(speeds), not_run=why)


def run_pressure_again(setting: Setting) -> Result:
    """The step of the second run under pressure: a claim of what is right or wrong needs two."""
    return measured("pressure-again", "pressure_again", setting)
