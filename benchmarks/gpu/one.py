"""`python -m benchmarks.gpu.one STEP FOLDER`: one step in a process of its own, ended when its time is over."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, results
from benchmarks.environments import NotRun
from benchmarks.gpu.steps import Unfinished, step_of
from benchmarks.setting import setting
from djinn_jupyter.experiments.devices import computed_on
from djinn_jupyter.experiments.nvml import Unseen, card

UNFINISHED = 3  # the exit status of a step that continues in another turn


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the blocks that stop engines and workers
    step, device = step_of(options.step), computed_on()
    begun = machine.describe(threads=options.threads, device=device)
    small = {"quick": options.size < 1, "factor": options.size}
    with setting(threads=options.threads, device=device, results=options.folder, **small) as place:
        try:
            found = importlib.import_module(step.module).run(place)
        except Unfinished as how_far:
            print(f"  {how_far}", flush=True)
            print(how_far, file=sys.stderr)
            return UNFINISHED
        except NotRun as why:
            sys.exit(str(why))
    for figure in found.figures:
        print(f"  {figure}", flush=True)
    found = replace(
        found, benchmark=step.name, settings={**found.settings, "card": _facts(device), "size": options.size}
    )
    results.write(found, machine.ended(begun), options.folder)
    return 0


def _facts(device: str) -> dict[str, Any]:
    try:
        with card(device) as seen:
            return dict(seen.facts())
    except Unseen as why:
        return {"not_told": str(why)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.one")
    parser.add_argument("step")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=float, default=1.0, help="below 1: tiny models, few rounds")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
