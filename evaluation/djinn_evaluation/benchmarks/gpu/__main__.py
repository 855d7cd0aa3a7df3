"""`python -m djinn_evaluation.benchmarks.gpu [STEP ...] [--quarter] [--minutes M] [--results FOLDER] [--size FACTOR]
[--list]`: run the steps without a whole result, then the report.

A step that is named runs again. The report is written anew after each turn; it lists the steps that fail or take too
long, and the others still run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.gpu import shapes
from djinn_evaluation.benchmarks.gpu.course import Course, alone, missing
from djinn_evaluation.benchmarks.gpu.steps import QUARTER, QUARTER_MINUTES, STEPS, Step, planned, step_of
from djinn_evaluation.machine import card_of, computed_on

SIZE_WITHOUT_A_GPU = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        (_plan if options.quarter else _list)()
        return 0
    begun, device = monotonic(), computed_on()
    size = options.size or (1.0 if device.startswith("cuda") else SIZE_WITHOUT_A_GPU)
    folder = folder_of(card_of(device), small=size < 1, below=options.results)
    folder.mkdir(parents=True, exist_ok=True)
    of = "" if size == 1 else f", {size:g} of the usual size"
    print(f"On {card_of(device)}{of}: results in {folder}", flush=True)
    minutes = options.minutes or (QUARTER_MINUTES if options.quarter else None)
    try:
        with alone(folder):
            course = Course(folder=folder, size=size, until=minutes and begun + 60 * minutes)
            course.run(options.steps or missing(folder, course.turns, QUARTER if options.quarter else STEPS))
            if minutes is None or not missing(folder, {}):
                shapes.delete()  # else the next run needs the model again
    except BlockingIOError:
        sys.exit(f"Another run writes to {folder}: wait for its end, or end it.")
    print((folder / "report.md").read_text())
    return 1 if course.reasons else 0


def folder_of(card: str, *, small: bool, below: Path | None = None) -> Path:
    """Return the folder of a card's results; git ignores the folder of the small profile."""
    slug = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    usual = harness.usual() / "quick" if small else harness.usual()
    return (below or usual).absolute() / slug


def _list() -> None:
    for number, step in enumerate(STEPS, 1):
        turns = f" in turns of {step.turn / 60:g}" if step.turn else ""
        print(f"{number:2} {step.name:12} {step.minutes:4g} min{turns:17} {step.learns}")
    print(f"   {'all':12} {sum(step.minutes for step in STEPS):4g} min, as expected of an H100")


def _plan() -> None:
    runs, left = planned()
    for number, steps in enumerate(runs, 1):
        print(f"run {number}: {_in_seconds(steps)}")
    print(f"left: {_in_seconds(left)}; the same again goes on with them")


def _in_seconds(steps: Sequence[Step]) -> str:
    return ", ".join(f"{step.name} {step.seconds} s" for step in steps) or "nothing"


def _named(name: str) -> Step:
    try:
        return step_of(name)
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no step {name}; --list says which there are") from None


def _factor(written: str) -> float:
    found = float(written)
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{written} is no size; write a number above 0, at most 1")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m djinn_evaluation.benchmarks.gpu")
    parser.add_argument("steps", nargs="*", metavar="STEP", type=_named)
    parser.add_argument("--list", action="store_true", help="say which steps there are, and run none")
    parser.add_argument(
        "--quarter",
        action="store_true",
        help=f"the most wanted steps alone, within {QUARTER_MINUTES:g} minutes; run it twice",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="end by then; run the same again to continue")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="keep the results here, in place of the checkout"
    )
    parser.add_argument(
        "--size",
        type=_factor,
        metavar="FACTOR",
        help=f"of the models' bytes, of the usual ones; below 1 with few rounds; without a GPU {SIZE_WITHOUT_A_GPU:g}",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
