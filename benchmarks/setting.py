"""The environment of a benchmark: a Jupyter of its own, equal thread counts, a random model that every side loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.worker import Worker
from djinn_jupyter.experiments.serving import PLACES, private_jupyter
from djinn_jupyter.machine import DEVICE_VARIABLE

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`quick` runs everything on a tiny model in few rounds: to see that a benchmark works, never for a figure. A
    benchmark that continues in another run keeps its state in `results`. `factor` is the size of the models that only
    a GPU holds, of their usual one."""

    quick: bool
    threads: int
    home: Path
    results: Path | None = None
    factor: float = 1.0

    def shape(self, usual: Shape = GPT2) -> Shape:
        return TINY if self.quick else usual

    def rounds(self, usual: int) -> int:
        return min(usual, 3) if self.quick else usual

    def saved(self, plain: Worker, shape: Shape) -> str:
        """Return the folder of the model of this shape; the worker `plain` creates it at first use, and loads it."""
        folder = self.home / "-".join(map(str, asdict(shape).values()))
        plain.ask("load", folder=str(folder), shape=asdict(shape), threads=self.threads)
        return str(folder)


@contextmanager
def setting(
    *, quick: bool, threads: int, device: str, results: Path | None = None, factor: float = 1.0
) -> Iterator[Setting]:
    """Set the environment that engines, kernels and workers inherit. Engines of the user are neither seen nor used."""
    variables = {
        DEVICE_VARIABLE: device,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }
    os.environ.pop("JPY_SESSION_NAME", None)
    with private_jupyter(FOLDERS, **variables) as home:
        yield Setting(quick=quick, threads=threads, home=home, results=results, factor=factor)
