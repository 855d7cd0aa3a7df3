"""Djinn's side: an engine process, reached through a client and its socket as from a kernel."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.setting import Setting
from djinn_jupyter.api.engine import RemoteEngine


@contextmanager
def engine_of(folder: str, setting: Setting) -> Iterator[RemoteEngine]:
    engine = dj.load(folder, threads=setting.threads)
    try:
        yield engine
    finally:
        engine.stop(force=True)


def pid_of(engine: RemoteEngine) -> int:
    assert engine.entry is not None
    return engine.entry.pid


class Stopwatch:
    """Notes the time at which each new token reached this process."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, token: object) -> None:
        self.times.append(perf_counter())

    @property
    def decoding(self) -> float:
        """Seconds from the first new token to the last."""
        return self.times[-1] - self.times[0]

    @property
    def usual(self) -> float:
        """Median seconds from one new token to the next; a machine that is busy now and then does not change it."""
        return statistics.median(after - before for before, after in pairwise(self.times))
