"""The sizes of the wheels, and the time from `pip install` to the first stop in a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from time import perf_counter
from typing import Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.harness import Checks, Figure, Result, Setting, Spread

ROUNDS: Final = 3
MB: Final = 1e6
FIRST_STOP: Final = """
import djinn_jupyter as dj
engine = dj.load("demo")
session = engine.session("first", fresh=True)
session.breakpoint("resid_post.4")
print(session.run("The capital of France is").hidden.shape)
engine.stop(force=True)
"""
SHAPE: Final = "(5, 128)\n"  # of the prompt's tokens in the demo model


def run_install(setting: Setting) -> Result:
    """Wheels are built and their dependencies downloaded first: pip installs from a folder, without a network."""
    folder, checks = setting.home / "wheels", Checks()
    ours = build_wheels(CHECKOUT, folder)
    download_dependencies(folder)
    rounds = [_installed(setting.home / f"environment{number}", folder, checks) for number in range(_rounds(setting))]
    figures = (
        *(Figure(name=f"the wheel {wheel.name}", unit="MB", value=_size([wheel])) for wheel in ours),
        Figure(name="all wheels that an engine on a CPU needs", unit="MB", value=_size([*folder.iterdir()])),
        Figure(
            name="from `pip install djinn-jupyter` to the first stop",
            unit="s",
            value=Spread.of(map(sum, rounds)),
            sides={
                "pip install, from a folder of wheels": Spread.of(first for first, _ in rounds),
                "from starting Python to the end of a program with one stop": Spread.of(then for _, then in rounds),
            },
            sides_unit="s",
        ),
    )
    return Result(benchmark="install", settings={"rounds": len(rounds)}, figures=figures, checks=checks.counts)


def _rounds(setting: Setting) -> int:
    return 1 if setting.quick else ROUNDS


def build_wheels(tree: Path, folder: Path) -> list[Path]:
    """Build the wheels of both distributions of a tree into `folder`, and return all of them there."""
    for project in (tree / "distribution", tree):
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(build, cwd=project, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("djinn_jupyter*.whl"))


def download_dependencies(folder: Path) -> None:
    """Add the wheels that those in the folder require, in the versions that the tests run with."""
    pinned = ["--constraint", str(CHECKOUT / "constraints.txt"), "--find-links", str(folder), "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *pinned, "djinn-jupyter"]
    subprocess.run(command, check=True, capture_output=True)


def _installed(place: Path, folder: Path, checks: Checks) -> tuple[float, float]:
    """Return the seconds of an installation in a fresh environment, and those of its first program."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    begun = perf_counter()
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", folder, "djinn-jupyter"]
    subprocess.run(install, check=True, capture_output=True, env=outside())
    between = perf_counter()
    said = subprocess.run([python, "-c", FIRST_STOP], check=True, capture_output=True, text=True, env=outside())
    ended = perf_counter()
    checks.same("stops in a fresh environment", said.stdout, SHAPE)
    return between - begun, ended - between


def outside() -> dict[str, str]:
    """Return the environment of a process that has nothing of this checkout on its path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _size(files: list[Path]) -> Spread | None:
    return Spread.of([sum(file.stat().st_size for file in files) / MB])
