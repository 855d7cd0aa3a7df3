"""The form of a process's log, as it is told to the other processes of its engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """`form` and `level` as the options have them; `path` is the file that standard error goes to, if any; `rank` is
    that of a process beside the engine's, which logs to the same file."""

    form: str | None = None
    level: str | None = None
    engine: str = ""
    path: str | None = None
    rank: int | None = None
