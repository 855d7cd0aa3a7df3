"""The step of the evaluation: `djinn experiment all --profile gpu` on 13B-shaped weights; the small profile below the
usual size, but for experiments that have settings for tiny weights.

Each experiment is run on its own, so that the step goes on with the next one where its time was over. Their result
files and reports lie beside this step's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu.kept import EXPERIMENTS, Kept
from djinn_evaluation.benchmarks.gpu.serving import scale_of
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, saved, shape
from djinn_evaluation.benchmarks.gpu.steps import Unfinished
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Figure, Result, at_least
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.commands.every import steps_of
from djinn_evaluation.commands.offers import OFFERS

RESERVE: Final = 30  # seconds, to start a turn and to end an engine
LIKELY: Final = 200  # seconds that an experiment may take; with less left it begins in another turn


def run(setting: Setting) -> Result:
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
        config = shape(THIRTEEN, scale_of(setting))
        keys = tiny(config) if tiny is not None and setting.quick else ()
        arguments += ["--model", str(saved(config)), *(word for key in keys for word in ("--set", key))]

    def how_far() -> str:
        return f"{len(kept.found)} of {len(runs)} experiments"

    def figures() -> list[Figure]:
        return [_figure(one, kept.found[one]) for one in runs if one in kept.found]

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


def _figure(name: str, told: str) -> Figure:
    judged = told in ("PASS", "FAIL")
    return Figure(
        name=f"experiments that pass: {name}",
        unit="of them",
        value=Spread.of([float(told == "PASS")]) if judged else None,
        bar=at_least(1.0),
        not_run=None if judged else told,
    )
