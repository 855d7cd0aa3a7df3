"""Read the engines' logs. Only logs in the registry's folder that belong to this user are shown."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.client.engines.registry import registry_folder
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.own import read_own
from djinn_jupyter.wire.registry import LOG_SUFFIX, Entry


def log_of(entry: Entry) -> Path:
    """Return the log of a running engine. UsageError where it writes none, or outside the registry's folder."""
    if entry.log is None:
        raise UsageError(f"The engine of {entry.identity} writes no log file: it was started by hand.")
    if Path(entry.log).parent != registry_folder():
        raise UsageError(
            f"The engine of {entry.identity} was started by hand and writes to {entry.log}; read it there."
        )
    return Path(entry.log)


def logs() -> list[Path]:
    """Return all logs, the latest written last; logs outlive their engines."""
    return sorted(registry_folder().glob(f"*{LOG_SUFFIX}"), key=lambda path: path.lstat().st_mtime)


def last_lines(path: Path, count: int) -> str:
    """Return the last `count` lines of a log. UsageError for a missing log, a link or another user's file."""
    try:
        written = read_own(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise UsageError(f"There is no log {path} any more.") from None
    return "\n".join(written[-count:])
