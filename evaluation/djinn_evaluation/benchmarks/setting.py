"""The environment of a benchmark: a Jupyter of its own, equal thread counts, a random model that every side loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from djinn_evaluation.benchmarks.measuring import Readings
from djinn_evaluation.benchmarks.results import Figure
from djinn_evaluation.benchmarks.worker import Worker
from djinn_evaluation.serving import PLACES, private_jupyter
from djinn_jupyter.machine import DEVICE_VARIABLE

TURN_SECONDS = 480.0
FOLDERS = (*PLACES, "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "HF_HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A GPT-2 of this size, with random weights, saved without a tokenizer."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    seed: int = 0


GPT2 = Shape()
TINY = Shape(layers=8, width=64, heads=4, vocabulary=512, positions=1024)

SoFar = Callable[[Iterable[Figure], str], None]
"""Keeps the figures found so far, with words on how far the benchmark is: what a run that is cut leaves."""


def _kept_nowhere(figures: Iterable[Figure], how_far: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`quick` runs everything on a tiny model in few rounds: to see that a benchmark works, never for a figure. A
    benchmark that continues in another run keeps its state in `results`. `factor` is the size of the models that only
    a GPU holds, of their usual one. `seconds` are those of this run; a benchmark that may need more continues in
    another."""

    quick: bool
    threads: int
    home: Path
    results: Path | None = None
    factor: float = 1.0
    seconds: float = TURN_SECONDS
    so_far: SoFar = _kept_nowhere

    def shape(self, usual: Shape = GPT2) -> Shape:
        return TINY if self.quick else usual

    def rounds(self, usual: int) -> int:
        return min(usual, 3) if self.quick else usual

    def after_rounds(
        self, figures: Callable[[Readings], Iterable[Figure]], rounds: int, before: Sequence[Figure] = ()
    ) -> Callable[[Readings], None]:
        """Return what keeps, after each round of `take_turns`, the figures of its readings and those found before."""

        def keep(readings: Readings) -> None:
            count = len(next(iter(readings.values())))
            self.so_far([*before, *figures(readings)], f"{count} of {rounds} rounds of {len(readings)} sides")

        return keep

    def saved(self, plain: Worker, shape: Shape) -> str:
        """Return the folder of the model of this shape; the worker `plain` creates it at first use, and loads it."""
        folder = self.home / "-".join(map(str, asdict(shape).values()))
        plain.ask("load", folder=str(folder), shape=asdict(shape), threads=self.threads)
        return str(folder)


@contextmanager
def setting(*, quick: bool, threads: int, device: str, **others: Any) -> Iterator[Setting]:
    """Set the environment that engines, kernels and workers inherit. Engines of the user are neither seen nor used.
    `others` are fields of the setting."""
    variables = {
        DEVICE_VARIABLE: device,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }
    os.environ.pop("JPY_SESSION_NAME", None)
    with private_jupyter(FOLDERS, **variables) as home:
        yield Setting(quick=quick, threads=threads, home=home, **others)
