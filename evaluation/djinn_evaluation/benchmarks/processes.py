"""CPU seconds of a process, which a busy machine does not stretch, unlike the wall clock.

A GPU's work is in none of them: there the wall clock is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from djinn_evaluation.cores import seconds_computed
from djinn_evaluation.devices import computed_on

UNSAID = "this system does not say how long a process has computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Reads seconds of work, and says which in `unit`."""

    read: Callable[[], float]
    unit: str

    def of(self, work: Callable[[], object]) -> float:
        """Return the seconds that `work` takes."""
        begun = self.read()
        work()
        return self.read() - begun


def clock_of(*pids: int) -> Clock:
    """Return the clock of these processes' work: their CPU seconds, or the wall clock where a GPU computes. Raises
    RuntimeError where the system does not say them."""
    if computed_on().startswith("cuda"):
        return Clock(read=perf_counter, unit="s")
    if seconds_computed(os.getpid()) is None:
        raise RuntimeError(UNSAID)
    return Clock(read=lambda: seconds_computed(*pids) or 0.0, unit="CPU s")


class Computing:
    """CPU seconds of a process between `begin` and `end`; `readings` is empty where the system does not say them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = seconds_computed(pid)
        self.readings: list[float] = []

    def begin(self) -> None:
        self._before = seconds_computed(self._pid)

    def end(self) -> None:
        now = seconds_computed(self._pid)
        if now is not None and self._before is not None:
            self.readings.append(now - self._before)
