"""The log files of an engine: bounded in size, and rotated. Standard library only.

NAME.log  NAME.1.log  NAME.2.log ...     the latest, then older ones
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
_LINE: Final = 200  # characters of a line that are shown


def older(path: Path, number: int) -> Path:
    """Return the name of an older log; 1 is the one before."""
    return path.with_name(f"{path.name.removesuffix(LOG_SUFFIX)}.{number}{LOG_SUFFIX}")


def with_older(path: Path) -> list[Path]:
    """Return the existing logs, older ones first."""
    return [one for one in (*(older(path, n) for n in range(OLDER_KEPT, 0, -1)), path) if one.exists()]


def reason_of_end(path: Path, pid: int | None = None) -> str | None:
    """Return how a process that served ended, if not in order, by its log: the signal, if it named one, and the line
    before. None where it ended in order, or its log is unreadable. `pid` is that process, by default the last one."""
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
    """Return whether that process wrote at its end that it was asked to end, or had nothing left to do."""
    life = _last_life(path, pid)
    return life is not None and any(ENDED in line for line in life[0])


def _last_life(path: Path, pid: int | None) -> tuple[list[str], bool] | None:
    """Return the lines of that process, or of the last one, and whether its first line is among them; None for an
    unreadable log."""
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
    """Return a reason in the form for a person; others do not get the line of the log, which may be about anyone."""
    return reason if reason is None or to_own_user else reason.partition(";")[0]


def rotate(path: Path) -> None:
    """Rotate the logs: this one becomes the latest older one, and the oldest is removed. Raises OSError."""
    for number in range(OLDER_KEPT, 1, -1):
        if older(path, number - 1).exists():
            older(path, number - 1).replace(older(path, number))
    path.replace(older(path, 1))


# The ids of a request, from its magic to the layer where it stopped, in the form of a W3C trace context
# (https://www.w3.org/TR/trace-context): standard tools read the logs by them. trace what a person asked for: a magic,
# or one call of the API span one request of it; sent again it keeps its id, so the log of the next engine has the same
# They are drawn at random and say nothing of the work. `%load_ext` reads this file: the standard library only.

TRACEPARENT: Final = r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z"
ASKED_BY: Final = r"^[%\w .-]*\Z"  # in one line of the log: `$` would allow a line end
SHOWN_CHARACTERS: Final = 8  # of an id: enough to distinguish it from a hundred thousand others in a log


@dataclass(frozen=True, slots=True)
class Trace:
    """`asked_by` is the magic as typed; empty for a call of the API."""

    trace_id: str
    span_id: str
    asked_by: str = ""

    @classmethod
    def drawn(cls, asked_by: str = "") -> Trace:
        return cls(secrets.token_hex(16), secrets.token_hex(8), asked_by)

    @classmethod
    def read(cls, traceparent: str, asked_by: str) -> Trace:
        """Return the trace in a message; new ids for a message without one."""
        if not traceparent:
            return cls.drawn(asked_by)
        _, trace_id, span_id, _ = traceparent.split("-")
        return cls(trace_id, span_id, asked_by)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def shown(self) -> str:
        """The part of the trace's id that a person sees, and finds its lines by."""
        return self.trace_id[:SHOWN_CHARACTERS]


_asking: ContextVar[Trace | None] = ContextVar("asking", default=None)


@contextmanager
def asked_by(name: str) -> Iterator[None]:
    """Give the requests made within one trace; inside another trace they belong to that one."""
    if _asking.get() is not None:
        yield
        return
    token = _asking.set(Trace.drawn(name))
    try:
        yield
    finally:
        _asking.reset(token)


def next_request() -> Trace:
    """Return the ids of a new request: in the present trace, else in a new one."""
    asking = _asking.get()
    return Trace.drawn() if asking is None else replace(asking, span_id=secrets.token_hex(8))
