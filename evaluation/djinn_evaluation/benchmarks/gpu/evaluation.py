"""The step of the evaluation: `djinn experiment all --profile gpu` on 13B-shaped weights; the small profile below the
usual size.

Each experiment is run on its own, so that the step goes on with the next one where its time was over. Their result
files and reports lie beside this step's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu.kept import Kept
from djinn_evaluation.benchmarks.gpu.serving import scale_of
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, saved, shape
from djinn_evaluation.benchmarks.gpu.steps import Unfinished
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Figure, Result, at_least
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.commands.offers import OFFERS

RESERVE: Final = 60  # seconds, to save the model and to end an engine
LIKELY: Final = 200  # seconds that an experiment may take; with less left it begins in another turn


def run(setting: Setting) -> Result:
    begun, folder = monotonic(), (setting.results or setting.home) / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept.of("evaluation", setting)
    arguments = _arguments(setting)

    def how_far() -> str:
        return f"{len(kept.found)} of {len(OFFERS)} experiments"

    def figures() -> list[Figure]:
        return [_figure(offer.name, kept.found[offer.name]) for offer in OFFERS if offer.name in kept.found]

    for offer in OFFERS:
        if offer.name in kept.found:
            continue
        left = setting.seconds - RESERVE - (monotonic() - begun)
        if left < LIKELY:
            raise Unfinished(how_far())
        kept.add(offer.name, verdict(offer.name, arguments, folder, left))
        setting.so_far(figures(), how_far())
    return Result(benchmark="evaluation", settings={"verdicts": kept.found}, figures=tuple(figures()))


def _arguments(setting: Setting) -> list[str]:
    """Return the command line's arguments that are the same for each experiment."""
    if setting.quick:
        return ["--profile", "small"]
    return ["--profile", "gpu", "--model", str(saved(shape(THIRTEEN, scale_of(setting))))]


def verdict(name: str, arguments: list[str], folder: Path, seconds: float) -> str:
    """Run one experiment; return PASS, FAIL, or why there is no verdict."""
    command = [sys.executable, "-m", "djinn_jupyter.cli.main", "experiment", "all", "--only", name]
    command += [*arguments, "--output-dir", str(folder)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # upon which it ends its engine, and writes its report
            process.communicate()
            return f"it took longer than {seconds:.0f} s"
    verdicts = [line.removeprefix(name).strip() for line in told.splitlines() if line.startswith(name)]
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
