"""The time that processes have waited for a processor core, by the kernel's own count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

PROCESSES: Final = Path("/proc")


def seconds_without_core(pids: Sequence[int]) -> float | None:
    """Return the seconds that the threads of these processes, all together, were ready to run and had no core. None
    where the kernel does not count them; Linux does."""
    files = [file for pid in pids for file in (PROCESSES / str(pid) / "task").glob("*/schedstat")]
    found = [nanoseconds for file in files if (nanoseconds := _delay(file)) is not None]
    return sum(found) / 1e9 if found else None


def _delay(file: Path) -> int | None:
    """Return a thread's nanoseconds, the second of its three numbers; None for a thread that has ended."""
    try:
        return int(file.read_text().split()[1])
    except (OSError, IndexError):
        return None
