"""`python -m djinn_evaluation.benchmarks.gpu.one STEP FOLDER`: one turn of a step in its own process.

Each figure is written to the step's file immediately, so that a terminated turn keeps its figures.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from djinn_evaluation import machine
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.gpu.steps import SECONDS, UNFINISHED, Unfinished, step_of
from djinn_evaluation.benchmarks.harness import Figure, Result, setting
from djinn_evaluation.machine import computed_on
from djinn_evaluation.nvml import Unseen, card


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the blocks that stop engines and workers
    step, device = step_of(options.step), computed_on()
    begun = machine.describe(threads=options.threads, device=device)

    def written(found: Result, how_far: str | None) -> None:
        settings = {**found.settings, "card": _facts(device), "size": options.size}
        harness.write(
            replace(found, benchmark=step.name, settings=settings),
            machine.ended(begun),
            options.folder,
            partial=how_far,
        )

    def so_far(figures: Iterable[Figure], how_far: str) -> None:
        written(Result(benchmark=step.name, settings={}, figures=tuple(figures)), how_far)

    small = {"quick": options.size < 1, "factor": options.size}
    kept: dict[str, Any] = {"results": options.folder, "seconds": options.seconds, "so_far": so_far}
    with setting(threads=options.threads, device=device, **small, **kept) as place:
        try:
            found = step.run(place)
        except Unfinished as how_far:
            print(f"  {how_far}", flush=True)
            print(how_far, file=sys.stderr)
            return UNFINISHED
        except NotRun as why:
            sys.exit(str(why))
    for figure in found.figures:
        print(f"  {figure}", flush=True)
    written(found, None)
    return 0


def _facts(device: str) -> dict[str, Any]:
    try:
        with card(device) as seen:
            return dict(seen.facts())
    except Unseen as why:
        return {"not_told": str(why)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m djinn_evaluation.benchmarks.gpu.one")
    parser.add_argument("step")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=float, default=1.0, help="below 1: tiny models, few rounds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of this turn")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
