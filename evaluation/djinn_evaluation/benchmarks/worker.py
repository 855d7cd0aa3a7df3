"""Worker processes: a tool, or plain PyTorch, that the engine is compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from djinn_evaluation import CHECKOUT, EVALUATION
from djinn_evaluation.baselines.asking import Baseline


class Worker(Baseline):
    """A module of `djinn_evaluation.benchmarks.workers`, perhaps in another tool's environment."""

    def __init__(self, module: str, python: Path | str = sys.executable) -> None:
        super().__init__(f"djinn_evaluation.benchmarks.workers.{module}", python=python, folders=(EVALUATION, CHECKOUT))

    @property
    def pid(self) -> int:
        return self.process.pid

    def seconds(self, verb: str, **arguments: Any) -> float:
        return float(self.ask(verb, **arguments)["seconds"])


@contextmanager
def worker(module: str, python: Path | str = sys.executable) -> Iterator[Worker]:
    made = Worker(module, python)
    try:
        yield made
    finally:
        made.close()
