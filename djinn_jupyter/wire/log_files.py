"""The log files of an engine: at most so large, then begun anew beside a few older ones. Standard library only.

NAME.log  NAME.1.log  NAME.2.log ...     the latest, then older ones
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
LOG_BYTES: Final = 5 * 2**20
OLDER_KEPT: Final = 3
READY: Final = "Ready: "
"""In the line with which an engine begins to serve, as ENDED is in the last one of an orderly end."""
ENDED: Final = "Ended. "
_FATAL: Final = "Fatal Python error: "
_TAIL_BYTES: Final = 2**18
_LINE: Final = 200  # characters that are told of a line


def older(path: Path, number: int) -> Path:
    """Return the name of an older log; 1 is the one before."""
    return path.with_name(f"{path.name.removesuffix(LOG_SUFFIX)}.{number}{LOG_SUFFIX}")


def with_older(path: Path) -> list[Path]:
    """Return the log and those before it that there are, the oldest first."""
    return [one for one in (*(older(path, n) for n in range(OLDER_KEPT, 0, -1)), path) if one.exists()]


def reason_of_end(path: Path, pid: int | None = None) -> str | None:
    """Return how a process that served ended where it was not in order, by its log: the signal, if it told one, and the
    line before. None where it ended in order, or its log cannot be read. `pid`: that process, which
    has served, else the last one."""
    life = _last_life(path, pid)
    if life is None:
        return None
    lines, begins = life
    fatal = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), len(lines))
    served = pid is not None or not begins or fatal < len(lines) or any(READY in line for line in lines)
    if not served or any(ENDED in line for line in lines):
        return None
    how = lines[fatal].removeprefix(_FATAL) if fatal < len(lines) else "killed, or out of memory"
    last = next((line for line in reversed(lines[:fatal]) if line.strip()), "none")
    return f"a signal ended its process ({how}); the last line of its log: {last[:_LINE]}"


def ended_in_order(path: Path, pid: int) -> bool:
    """Return whether that process wrote at its end that it was asked for, or had nothing left to do."""
    life = _last_life(path, pid)
    return life is not None and any(ENDED in line for line in life[0])


def _last_life(path: Path, pid: int | None) -> tuple[list[str], bool] | None:
    """Return the lines of that process, or of the last one, and whether its first line is among them; None where the
    log cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    mark = ", process " if pid is None else f", process {pid}, model "
    begins = [number for number, line in enumerate(lines) if "djinn-jupyter " in line and mark in line]
    return (lines[begins[-1] :], True) if begins else (lines, False)


def told_of_end(reason: str | None, to_own_user: bool) -> str | None:
    """Return a reason as it is told; to others without the line of the log, which may be about anyone."""
    return reason if reason is None or to_own_user else reason.partition(";")[0]


def rotate(path: Path) -> None:
    """Make the log the latest of the older ones, of which the oldest goes. Raises OSError."""
    for number in range(OLDER_KEPT, 1, -1):
        if older(path, number - 1).exists():
            older(path, number - 1).replace(older(path, number))
    path.replace(older(path, 1))
