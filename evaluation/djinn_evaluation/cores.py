"""The processor cores of a measurement: the time that processes waited for one, and a way to have them first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

PROCESSES: Final = Path("/proc")


def seconds_without_core(pids: Sequence[int]) -> float | None:
    """Return the seconds that the threads of these processes, all together, were ready to run and had no core. None
    where the kernel does not count them; Linux does."""
    return _seconds(pids, 1)


def seconds_computed(*pids: int) -> float | None:
    """Return the CPU seconds of the threads that these processes have, all together, to the nanosecond; None where the
    system does not say."""
    return _seconds(pids, 0)


def _seconds(pids: Sequence[int], place: int) -> float | None:
    files = [file for pid in pids for file in (PROCESSES / str(pid) / "task").glob("*/schedstat")]
    found = [nanoseconds for file in files if (nanoseconds := _nanoseconds(file, place)) is not None]
    return sum(found) / 1e9 if found else None


@dataclass(slots=True)
class CoreWait:
    """The share of a block's time for which the threads of some processes, all together, had no core; None until the
    block has ended, and where the kernel does not count that."""

    share: float | None = None


@contextmanager
def core_wait(pids: Sequence[int]) -> Iterator[CoreWait]:
    """Measure how long these processes wait for a core during the block."""
    found, before, begun = CoreWait(), seconds_without_core(pids), perf_counter()
    yield found
    seconds, after = perf_counter() - begun, seconds_without_core(pids)
    if before is not None and after is not None:
        found.share = max(0.0, after - before) / seconds


def _nanoseconds(file: Path, place: int) -> int | None:
    """Return one of a thread's three numbers; None for a thread that has ended."""
    try:
        return int(file.read_text().split()[place])
    except (OSError, IndexError):
        return None


@contextmanager
def cores_first(pids: Sequence[int], *, asked: bool) -> Iterator[bool]:
    """Give the threads of these processes a core before all other programs during the block, where that is asked for,
    so that the other programs' work is no part of a comparison. Yield True where the kernel grants it, which takes a
    right that not every user has. The other programs keep a twentieth of each second, by Linux's own rule."""
    granted = asked and _granted(pids)
    try:
        yield granted
    finally:
        if granted:
            _schedule(pids, first=False)


def _granted(pids: Sequence[int]) -> bool:
    """Return whether all of these processes have the cores first; where the kernel refuses one, none has them."""
    try:
        return _schedule(pids, first=True)
    except PermissionError:
        with suppress(PermissionError):  # of the one that was refused
            _schedule(pids, first=False)
        return False


def _schedule(pids: Sequence[int], *, first: bool) -> bool:
    """Set the kernel's policy for each thread of these processes; a thread begins with that of the one that starts it.
    Return False where there is no such policy."""
    if sys.platform != "linux":
        return False
    policy = os.SCHED_RR if first else os.SCHED_OTHER
    for pid in pids:
        for thread in (PROCESSES / str(pid) / "task").glob("*"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(int(first)))
    return True
