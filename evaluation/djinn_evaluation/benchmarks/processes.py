"""CPU seconds of a process, which a busy machine does not stretch, unlike the wall clock.

A GPU's work is in none of them: there the wall clock is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from djinn_evaluation.devices import computed_on

UNSAID = "this system does not say how long a process has computed"


def computing(pid: int) -> float | None:
    """Return the CPU seconds of all threads of a process so far, to the nanosecond; None where the system does not
    say."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return None


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
    if computing(os.getpid()) is None:
        raise RuntimeError(UNSAID)
    return Clock(read=lambda: sum(computing(pid) or 0.0 for pid in pids), unit="CPU s")


class Computing:
    """CPU seconds of a process between `begin` and `end`; `readings` is empty where the system does not say them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = computing(pid)
        self.readings: list[float] = []

    def begin(self) -> None:
        self._before = computing(self._pid)

    def end(self) -> None:
        now = computing(self._pid)
        if now is not None and self._before is not None:
            self.readings.append(now - self._before)
