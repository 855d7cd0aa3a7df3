"""`python -m benchmarks.gpu [STEP ...] [--list] [--size FACTOR]`: run the steps without a result, then the report.

A step that is named runs again. The report lists the steps that fail or take too long, and the others still run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.gpu import shapes
from benchmarks.gpu.one import UNFINISHED
from benchmarks.gpu.report import report
from benchmarks.gpu.steps import NOT_BUILT, SECONDS, STEPS, Step, step_of
from benchmarks.worker import ROOT
from djinn_jupyter.experiments.devices import card_of, computed_on

REASONS = "not_measured.json"
SIZE_WITHOUT_A_GPU = 1e-4
GRACE_SECONDS = 30  # for a turn whose time is over to stop its engines


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        _list()
        return 0
    device = computed_on()
    size = options.size or (1.0 if device.startswith("cuda") else SIZE_WITHOUT_A_GPU)
    folder = folder_of(card_of(device), small=size < 1)
    folder.mkdir(parents=True, exist_ok=True)
    of = "" if size == 1 else f", {size:g} of the usual size"
    print(f"On {card_of(device)}{of}: results in {folder.relative_to(results.HERE.parent)}/")
    reasons = run(options.steps or missing(folder), folder, size=size)
    shapes.delete()
    told = report(folder, reasons)
    (folder / "report.md").write_text(told)
    print(told)
    return 1 if reasons else 0


def folder_of(card: str, *, small: bool) -> Path:
    """Return the folder of a card's results; git ignores the folder of the small profile."""
    slug = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    return (results.HERE / "quick" if small else results.HERE) / slug


def missing(folder: Path) -> list[Step]:
    return [step for step in STEPS if not (folder / f"{step.name}.json").exists()]


def run(steps: Sequence[Step], folder: Path, *, size: float) -> dict[str, str]:
    """Run each step; return the reasons why steps have no result, these and those that failed before."""
    path = folder / REASONS
    reasons: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    for step in steps:
        print(f"{step.name}: {step.learns}", flush=True)
        (folder / f"{step.name}.json").unlink(missing_ok=True)
        why = _turns(step, folder, size=size)
        reasons.pop(step.name, None)
        if why is not None:
            reasons[step.name] = why
            print(f"  not measured: {why}", flush=True)
        path.write_text(json.dumps(reasons, indent=1) + "\n")
    return reasons


def _turns(step: Step, folder: Path, *, size: float) -> str | None:
    """Run as many turns as the step needs; return why it has no result, None where it has one."""
    command = [sys.executable, "-m", "benchmarks.gpu.one", step.name, str(folder), f"--size={size}"]
    before = None
    while True:
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as turn:
            try:
                _, errors = turn.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                _end(turn)
                return f"it took longer than {SECONDS} s"
        if turn.returncode == 0:
            return None
        last = errors.strip().rpartition("\n")[2]
        if turn.returncode != UNFINISHED:
            sys.stderr.write(errors)
            return last or f"it ended with status {turn.returncode}"
        if last == before:
            return f"a turn of {SECONDS} s came no further: {last}"
        before = last


def _end(turn: subprocess.Popen[str]) -> None:
    """Terminate a turn, which then stops its engines: they would outlive it and keep the GPU's memory. Kill it where it
    does not end in time."""
    turn.terminate()
    try:
        turn.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        turn.kill()


def _list() -> None:
    for number, step in enumerate(STEPS, 1):
        print(f"{number:2} {step.name:12} {step.learns}")
    for name, what in NOT_BUILT.items():
        print(f" - {name:12} {what} (not built)")


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("steps", nargs="*", metavar="STEP", type=_named)
    parser.add_argument("--list", action="store_true", help="say which steps there are, and run none")
    parser.add_argument(
        "--size",
        type=_factor,
        metavar="FACTOR",
        help=f"of the models' bytes, of the usual ones; below 1 with few rounds; without a GPU {SIZE_WITHOUT_A_GPU:g}",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
