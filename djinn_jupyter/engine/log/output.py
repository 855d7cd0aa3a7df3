"""The log's way to standard error, by a thread of its own, so that no disk or pipe delays a pass or ends a thread.

A log file that it goes to is begun anew when it is large (wire/log_files.py). Lines that find no room, or that cannot
be written, are counted, and the next one that can says how many.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Full, Queue
from typing import Final

from djinn_jupyter.engine.log.lines import JsonLines, PlainLines, Stamp
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.log_files import LOG_BYTES, rotate
from djinn_jupyter.wire.own import open_own

MOST_WAITING: Final = 10_000  # lines
CLOSE_SECONDS: Final = 2.0  # at most for what waits, at the end of a process whose standard error no one reads
OURS: Final = "djinn_jupyter"
_OUT, _ERR = 1, 2


class StandardError:
    """Writes lines to standard error, and begins the file at `path` anew where that is what it is. It is no handler of
    the standard library: those are locked at the end of a process, for which one that hangs would wait."""

    def __init__(self, path: Path | None = None, most_bytes: int = LOG_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self.lost = 0

    def write(self, line: str) -> None:
        lost = f"{self.lost} lines of the log were lost here\n" if self.lost else ""
        try:
            _write(f"{lost}{line}\n".encode(errors="backslashreplace"))
            self.lost = 0
        except OSError:  # a full disk, a closed pipe
            self.lost += 1
        self._rotate_if_large()

    def _rotate_if_large(self) -> None:
        try:
            if self._path is not None and self._is_large(self._path):
                _begin_anew(self._path)
        except (OSError, UsageError):
            self._most_bytes += LOG_BYTES  # looked at again when there is as much more

    def _is_large(self, path: Path) -> bool:
        found = os.fstat(_ERR)
        if not stat.S_ISREG(found.st_mode) or found.st_size < self._most_bytes:
            return False
        return os.path.samestat(found, path.stat())


class QueuedLines(QueueHandler):
    """Formats a line where it is logged, and has `sink` write it in the order of logging. `close` lets it write what
    waits."""

    def __init__(self, formatter: logging.Formatter, sink: StandardError, most: int = MOST_WAITING) -> None:
        self._waiting: Queue[logging.LogRecord | None] = Queue(most)
        super().__init__(self._waiting)
        self.setFormatter(formatter)
        self.addFilter(Stamp())
        self._sink, self._closed = sink, False
        self._thread = threading.Thread(target=self._write, name="djinn-log", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except Full:
            self._sink.lost += 1

    def handleError(self, record: logging.LogRecord) -> None:
        self._sink.lost += 1

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(Full):
                self._waiting.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)
        super().close()

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._sink.write(record.getMessage())


@contextmanager
def logging_to_standard_error(*, form: str | None, level: str | None, engine: str, path: str | None) -> Iterator[None]:
    """Have this process log to standard error, which goes to the file at `path`, if any. Libraries log from info on."""
    formatter = JsonLines(engine) if form == "json" else PlainLines()
    queued = QueuedLines(formatter, StandardError(None if path is None else Path(path)))
    logging.basicConfig(level=logging.INFO, handlers=[queued], force=True)
    logging.getLogger(OURS).setLevel(logging.getLevelNamesMapping().get((level or "info").upper(), logging.INFO))
    try:
        yield
    finally:
        logging.getLogger().removeHandler(queued)
        queued.close()


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(_ERR, line) :]


def _begin_anew(path: Path) -> None:
    """Make the log an older one and have standard output and error, also those of libraries in C, go to a new file."""
    rotate(path)
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for standard in (_OUT, _ERR):
            os.dup2(descriptor, standard)
    finally:
        os.close(descriptor)
