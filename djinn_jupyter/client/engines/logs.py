"""Read the engines' logs. Only logs in the registry's folder that belong to this user are shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from djinn_jupyter.client.engines.registry import registry_folder
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.log_files import LOG_SUFFIX
from djinn_jupyter.wire.own import open_own, read_own
from djinn_jupyter.wire.registry import Entry

ID: Final = re.compile(r"^[0-9a-f]{4,32}$")
_BEGINNING: Final = re.compile(r"^(?:\d{4}-\d\d-\d\d |\{)")
_IDS: Final = re.compile(r" \[(?P<trace>[0-9a-f]{8}) (?P<span>[0-9a-f]{8}) .*\]$")
_PIECE_BYTES: Final = 2**20
_ERR: Final = 2


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


def lines_of_request(paths: Iterable[Path], request: str) -> list[str]:
    """Return the lines of a request in logs, the oldest first, by the beginning of its own id or of its trace's. A line
    has its traceback behind it. UsageError for what is no id, and where no line has it."""
    asked = request.lower()
    if not ID.match(asked):
        raise UsageError("A request's id is at least 4 of its digits 0-9 and a-f, as 3f2a9c01.")
    every = list(paths)
    found = [line for path in every for line in _lines_of(_read(path), asked)]
    if not found:
        looked = ", ".join(str(path) for path in every)
        raise UsageError(f"No line of a request {request} is in {looked}: it came to no engine, or its lines are gone.")
    return found


def _read(path: Path) -> str:
    try:
        return read_own(path).decode(errors="replace")
    except FileNotFoundError:  # begun anew since it was listed
        return ""


def _lines_of(written: str, asked: str) -> Iterator[str]:
    belongs = False
    for line in written.splitlines():
        if _BEGINNING.match(line):
            belongs = any(known.startswith(asked) or asked.startswith(known) for known in _ids_of(line))
        if belongs:
            yield line


def _ids_of(line: str) -> list[str]:
    """Return the ids of the trace and of the request of a line, for people or of JSON."""
    if line.startswith("{"):
        try:
            told = json.loads(line)
        except ValueError:  # cut off by the death of its engine
            return []
        return [told[name] for name in ("trace_id", "span_id") if isinstance(told.get(name), str)]
    found = _IDS.search(line)
    return [found["trace"], found["span"]] if found else []


class FollowedLog:
    """Copies what an engine writes to its log from now on to standard error, also when the log is begun anew."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path
        self._descriptor = open_own(path, os.O_RDONLY)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def copy(self) -> None:
        """Copy what is there. Nothing more is copied once standard error is closed."""
        try:
            self._copy_rest()
            if self._path is not None and self._begun_anew(self._path):
                os.close(self._descriptor)
                self._descriptor = open_own(self._path, os.O_RDONLY)
                self._copy_rest()
        except FileNotFoundError:
            return  # between its old name and the new file
        except OSError:
            self._path = None

    def close(self) -> None:
        os.close(self._descriptor)

    def _begun_anew(self, path: Path) -> bool:
        return not os.path.samestat(os.fstat(self._descriptor), path.stat())

    def _copy_rest(self) -> None:
        while self._path is not None and (piece := os.read(self._descriptor, _PIECE_BYTES)):
            while piece:
                piece = piece[os.write(_ERR, piece) :]
