"""The step of races: random interleavings on the device itself, and the same under CUDA's compute-sanitizer.

racecheck sees only shared memory within a kernel; that copies and kernels of several streams are in order is what the
interleavings show. Their logic, without a GPU's streams, runs on the CPU with the engine's threads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from time import monotonic
from typing import Any, Final

import torch

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu.interleavings import wrong
from djinn_evaluation.benchmarks.gpu.kept import Kept
from djinn_evaluation.benchmarks.gpu.steps import Unfinished
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Figure, Result, at_most
from djinn_evaluation.benchmarks.setting import Setting

COUNT, COUNT_IF_QUICK, CHUNK = 10_000, 20, 500
UNDER_A_TOOL, TOOL_SECONDS = 20, 100
TOOLS: Final = ("memcheck", "racecheck")
TOOL: Final = "compute-sanitizer"
TESTS: Final = (
    "tests/engine/residency/test_swapping.py",
    "tests/engine/residency/test_places.py",
    "tests/engine/memory/weights/test_streaming.py",
)
# What the tool runs, by its name: the interleavings, and the tests of copies and of the ring on the device.
PROGRAMS: Final = {
    "interleavings": ("-m", "djinn_evaluation.benchmarks.gpu.interleavings", str(UNDER_A_TOOL)),
    "tests": ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS),
}
SUMMARY: Final = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


class Unseen(Exception):
    """The tool did not come to an end of its own; the message says why."""


def run(setting: Setting) -> Result:
    torch.set_num_threads(setting.threads)
    begun, count = monotonic(), COUNT_IF_QUICK if setting.quick else COUNT
    kept, parts = Kept.of("races", setting), _parts(count)
    for name, find in parts.items():
        if name in kept.found:
            continue
        needed = 2 * TOOL_SECONDS if name.startswith(TOOLS) else TOOL_SECONDS
        if monotonic() - begun > setting.seconds - needed:
            raise Unfinished(f"{len(kept.found)} of {len(parts)} parts")
        kept.add(name, find())
        setting.so_far(_figures(kept), f"{len(kept.found)} of {len(parts)} parts")
    settings = {"seeds_with_wrong_readings": _wrong(kept), "interleavings_under_a_tool": UNDER_A_TOOL, "tests": TESTS}
    return Result(benchmark="races", settings=settings, figures=tuple(_figures(kept)), checks={"interleavings": count})


def _parts(count: int) -> dict[str, Callable[[], object]]:
    """Return what is to be found, by its name: chunks of the interleavings, and programs under tools."""
    chunks = [range(first, min(count, first + CHUNK)) for first in range(0, count, CHUNK)]
    tools = product(TOOLS, PROGRAMS)
    return {
        **{str(seeds): partial(_wrong_in, seeds) for seeds in chunks},
        **{f"{tool} {name}": partial(_errors, tool, name) for tool, name in tools},
    }


def _wrong_in(seeds: range) -> dict[str, Any]:
    return {"seeds": len(seeds), "wrong": wrong(seeds)}


def _errors(tool: str, name: str) -> dict[str, int | str]:
    """Return the number of errors that the tool reports, or why there is none."""
    try:
        return {"errors": errors(tool, PROGRAMS[name])}
    except Unseen as why:
        return {"not_run": str(why)}


def errors(tool: str, program: tuple[str, ...]) -> int:
    """Return the number of errors or hazards in a program. Raises Unseen."""
    path = shutil.which(TOOL)
    if path is None:
        raise Unseen(f"{TOOL} is not on the path")
    command = [path, "--tool", tool, sys.executable, *program]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unseen(f"{tool} was not through after {TOOL_SECONDS} s") from None
    found = [int(errors or hazards) for errors, hazards in SUMMARY.findall(done.stdout + done.stderr)]
    if not found:
        raise Unseen(f"{tool} says no summary: {(done.stdout + done.stderr).strip().rpartition(chr(10))[2][:200]}")
    if not any(found) and done.returncode:
        raise Unseen(f"{tool} reports no error of a program that ended with status {done.returncode}")
    return sum(found)


def _wrong(kept: Kept) -> list[int]:
    return [seed for value in kept.found.values() for seed in value.get("wrong", ())]


def _figures(kept: Kept) -> list[Figure]:
    count = sum(value.get("seeds", 0) for value in kept.found.values())
    interleavings = Figure(
        name=f"wrong readings among {count:,} random interleavings with poisoned pages",
        unit="interleavings",
        value=Spread.of([len(_wrong(kept))]),
        bar=at_most(0),
    )
    return [interleavings, *(_figure(name, value) for name, value in kept.found.items() if "seeds" not in value)]


def _figure(name: str, value: dict[str, int | str]) -> Figure:
    found, why = value.get("errors"), value.get("not_run")
    return Figure(
        name=f"errors of {name}",
        unit="errors",
        value=None if found is None else Spread.of([float(found)]),
        bar=at_most(0),
        not_run=None if why is None else str(why),
    )
