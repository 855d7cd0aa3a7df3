"""What engines wrote: their logs lie in the registry's folder, and only what lies there and is ours is shown."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.client.registry import registry_folder
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.own import read_own
from djinn_jupyter.wire.registry import LOG_SUFFIX, Entry


def log_of(entry: Entry) -> Path:
    """Where a running engine writes. UsageError where that is nowhere, or in no place of ours."""
    if entry.log is None:
        raise UsageError(f"The engine of {entry.identity} writes no log file: it was started by hand.")
    if Path(entry.log).parent != registry_folder():
        raise UsageError(
            f"The engine of {entry.identity} was started by hand and writes to {entry.log}; read it there."
        )
    return Path(entry.log)


def logs() -> list[Path]:
    """All logs, the one that was written last at the end; they outlive their engines."""
    return sorted(registry_folder().glob(f"*{LOG_SUFFIX}"), key=lambda path: path.lstat().st_mtime)


def last_lines(path: Path, count: int) -> str:
    """UsageError for a log that is a link or another user's."""
    try:
        written = read_own(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise UsageError(f"There is no log {path} any more.") from None
    return "\n".join(written[-count:])
