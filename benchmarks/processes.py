"""CPU seconds of a process, which a busy machine does not stretch, unlike the wall clock."""

from __future__ import annotations

from pathlib import Path

UNSAID = "this system does not say how long a process has computed"


def computing(pid: int) -> float | None:
    """Return the CPU seconds of all threads of a process so far, to the nanosecond; None where the system does not
    say."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return None


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
