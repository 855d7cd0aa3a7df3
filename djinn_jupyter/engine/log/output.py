"""The log's way to standard error, by a thread of its own, so that no disk or pipe delays a pass or ends a thread.

Who logs hands over a record and no more. A line is written at once, or with others GATHER_SECONDS after those before
it: to wake a thread for each costs several times the line. A log file that it goes to is begun anew when it is
large (wire/log_files.py). Lines that find no room, or that cannot be written, are counted, and the next one that can
says how many.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from djinn_jupyter.engine.log.form import LogForm
from djinn_jupyter.engine.log.lines import JsonLines, PlainLines, Stamp, spell_lost
from djinn_jupyter.engine.log.printed import libraries_logged
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.log_files import LOG_BYTES, rotate, with_older
from djinn_jupyter.wire.own import open_own

MOST_WAITING: Final = 10_000  # lines
GATHER_SECONDS: Final = 0.02  # a warning does not wait; an engine that is killed takes these lines along
MOST_AT_ONCE: Final = 64  # lines, of which a log file may become longer than LOG_BYTES
CLOSE_SECONDS: Final = 2.0  # at most for what waits, at the end of a process whose standard error no one reads
OURS: Final = "djinn_jupyter"
_OUT, _ERR = 1, 2


class StandardError:
    """Writes lines to standard error, and begins the file at `path` anew where that is what it is; without `rotates`
    it goes on in the file that another process has begun. `spell_lost` makes the line that tells how many were lost. It
    is no handler of the standard library: those are locked at the end of a process, for which one that hangs would
    wait."""

    def __init__(
        self,
        path: Path | None = None,
        most_bytes: int = LOG_BYTES,
        *,
        rotates: bool = True,
        spell_lost: Callable[[int], str] = spell_lost,
    ) -> None:
        self._path, self._most_bytes, self._rotates = path, most_bytes, rotates
        self._spell_lost = spell_lost
        self._end = 0  # of the file, behind what was written here last
        self.lost = 0

    def write(self, lines: Sequence[str]) -> None:
        told = [self._spell_lost(self.lost)] if self.lost else []
        try:
            self._append("".join(f"{line}\n" for line in (*told, *lines)).encode(errors="backslashreplace"))
            self.lost = 0
        except OSError:  # a full disk, a closed pipe
            self.lost += len(lines)
        if self._path is not None:
            self._look_at(self._path)

    def _append(self, text: bytes) -> None:
        """Write whole lines, on a line of their own also behind half a line of code in C."""
        end = os.fstat(_ERR).st_size
        if end != self._end and self._path is not None and _ends_in_half_a_line(self._path, end):
            text = b"\n" + text
        _write(text)
        self._end = end + len(text)

    def _look_at(self, path: Path) -> None:
        try:
            if self._rotates and self._is_large(path):
                rotate(path)
                _go_on_in(path)
            elif not self._rotates and _is_older(path):
                _go_on_in(path)
        except (OSError, UsageError):
            self._most_bytes += LOG_BYTES  # looked at again when there is as much more

    def _is_large(self, path: Path) -> bool:
        found = os.fstat(_ERR)
        if not stat.S_ISREG(found.st_mode) or found.st_size < self._most_bytes:
            return False
        return os.path.samestat(found, path.stat())


class QueuedLines(logging.Handler):
    """Takes records where they are logged, and has `sink` write their lines in that order. `close` lets it write what
    waits."""

    def __init__(self, formatter: logging.Formatter, sink: StandardError, most: int = MOST_WAITING) -> None:
        super().__init__()
        self._waiting: SimpleQueue[logging.LogRecord | str | None] = SimpleQueue()
        self.setFormatter(formatter)
        self.addFilter(Stamp())
        self._sink, self._most, self._closed = sink, most, False
        self._urgent = threading.Event()
        self._thread = threading.Thread(target=self._write, name="djinn-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._waiting.qsize() >= self._most:
                self._sink.lost += 1
                return
            self._waiting.put(self._taken(record))
            if record.levelno >= logging.WARNING:
                self._urgent.set()
        except Exception:  # noqa: BLE001  a line, whatever it is made of, ends no thread
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self._sink.lost += 1

    @property
    def lost(self) -> int:
        """Lines that could not be written since one last could."""
        return self._sink.lost

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            self._urgent.set()
            self._thread.join(CLOSE_SECONDS)
        super().close()

    def _taken(self, record: logging.LogRecord) -> logging.LogRecord | str:
        """Return what waits for a record: nothing that changes, and no traceback, whose frames hold tensors."""
        if record.exc_info:
            return self.format(record)
        record.msg, record.args = record.getMessage(), None
        return record

    def _write(self) -> None:
        ended, at_once = False, 0.0  # the moment from which on a line is written at once
        while not ended:
            first = self._waiting.get()
            if (early := at_once - time.monotonic()) > 0:
                self._urgent.wait(early)
                self._urgent.clear()
            waiting = [first, *self._others()]
            ended = None in waiting
            self._sink.write([line for one in waiting if one is not None and (line := self._line(one)) is not None])
            at_once = 0.0 if len(waiting) == MOST_AT_ONCE else time.monotonic() + GATHER_SECONDS

    def _others(self) -> Iterator[logging.LogRecord | str | None]:
        """Yield what waits besides, at most so much that the file is looked at in time."""
        with suppress(Empty):
            for _ in range(MOST_AT_ONCE - 1):
                yield self._waiting.get_nowait()

    def _line(self, waiting: logging.LogRecord | str) -> str | None:
        """Return the line; None for one that cannot be laid out, which is counted."""
        try:
            return waiting if isinstance(waiting, str) else self.format(waiting)
        except Exception:  # noqa: BLE001  likewise
            self._sink.lost += 1
            return None


@contextmanager
def logging_to_standard_error(form: LogForm) -> Iterator[None]:
    """Have this process log to standard error. Libraries log from info on."""
    of_json = form.form == "json"
    formatter = JsonLines(form.engine, form.rank) if of_json else PlainLines()
    path = None if form.path is None else Path(form.path)
    queued = QueuedLines(formatter, StandardError(path, rotates=form.rank is None, spell_lost=formatter.spell_lost))
    logging.basicConfig(level=logging.INFO, handlers=[queued], force=True)
    _look_up_nothing()
    logging.getLogger(OURS).setLevel(logging.getLevelNamesMapping().get((form.level or "info").upper(), logging.INFO))
    try:
        with libraries_logged() if of_json else nullcontext():
            yield
    finally:
        logging.getLogger().removeHandler(queued)
        queued.close()


def trouble() -> str | None:
    """Return in words that this process's log cannot be written; None where it can."""
    lost = sum(one.lost for one in logging.getLogger().handlers if isinstance(one, QueuedLines))
    return f"{lost:,} lines of the log could not be written" if lost else None


def _look_up_nothing() -> None:
    """Have records without what our lines do not have: the place in the code, found by walking the stack, the thread
    and the process (https://docs.python.org/3/howto/logging.html#optimization)."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(_ERR, line) :]


def _ends_in_half_a_line(path: Path, end: int) -> bool:
    """Return whether the file that standard error goes to has half a line before `end`; not where it is another."""
    with suppress(OSError), path.open("rb") as file:
        if end and os.path.samestat(os.fstat(file.fileno()), os.fstat(_ERR)):
            return os.pread(file.fileno(), 1, end - 1) != b"\n"
    return False


def _is_older(path: Path) -> bool:
    """Return whether standard error goes to a log that was begun anew since."""
    found = os.fstat(_ERR)
    return any(os.path.samestat(found, one.stat()) for one in with_older(path) if one != path)


def _go_on_in(path: Path) -> None:
    """Have standard output and error, also those of libraries in C, go to the file that is to be at `path`."""
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for standard in (_OUT, _ERR):
            os.dup2(descriptor, standard)
    finally:
        os.close(descriptor)
