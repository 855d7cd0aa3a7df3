"""The log of a process: its form, which the other processes of its engine share, and its way to standard error."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.logs import LOG_BYTES, SHOWN_CHARACTERS, Trace, rotate, with_older
from djinn_jupyter.wire.own import open_own


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """`form` and `level` as the options have them; `path` is the file that standard error goes to, if any; `rank` is
    that of a process beside the engine's, which logs to the same file."""

    form: str | None = None
    level: str | None = None
    engine: str = ""
    path: str | None = None
    rank: int | None = None


# The present request of a thread, to which its log lines belong. Knows no requests, only their log form.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request in the form for a log, without its content. `person` is the name of the key behind it, None for the
    engine's own user; `again` is true where an earlier engine was asked first."""

    trace: Trace
    verb: str
    person: str | None = None
    session: str | None = None
    again: bool = False


_present: ContextVar[LoggedRequest | None] = ContextVar("logged", default=None)


def present() -> LoggedRequest | None:
    """Return the present request of this thread."""
    return _present.get()


class WorkingOn:
    """Context of the work on a request. A class and not a generator: the engine enters one for every slice."""

    __slots__ = ("_logged", "_token")
    _token: Token[LoggedRequest | None]

    def __init__(self, logged: LoggedRequest | None) -> None:
        self._logged = logged

    def __enter__(self) -> None:
        self._token = _present.set(self._logged)

    def __exit__(self, *_: object) -> None:
        _present.reset(self._token)


# The lines of the log: for people, or one object of JSON each, in which a trace's ids have OpenTelemetry's names
# (https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context). {"time":
# "2026-11-26T04:27:30.123456Z", "level": "info", "engine": "demo", "pid": 17, "event": "request.ended", "trace_id":
# "3f2a...", "span_id": "9b1c...", "asked_by": "%djinn_run", "verb": "Run", "person": "anna", "session": "anna@main",
# "outcome": "Paused", "site": "resid_post.4", "seconds": 0.0123, "message": "Run ended..."} A record is laid out on
# the thread that logs it, while that is at work on the request that the line belongs to. Of an error met for a person
# with a key the type and the places are told, not the text, which may quote their work.

_SPELL: Final = json.JSONEncoder(default=str).encode
_WARNING: Final = {"levelno": logging.WARNING, "levelname": "WARNING"}
WITHHELD: Final = "(its text is the asker's alone)"


def told(event: str, **fields: object) -> dict[str, Any]:
    """Return the `extra` of a line that a program reads: its event and fields."""
    return {"event": event, "fields": fields}


def spell_lost(count: int) -> str:
    return f"{count} lines of the log were lost here"


class PlainLines(logging.Formatter):
    """`2026-11-26 04:27:30,123 INFO Run began [3f2a9c01 9b1c7d42 Run of %djinn_run, session main]`."""

    spell_lost = staticmethod(spell_lost)

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}{_in_brackets(present())}"
        return f"{line}\n{_error_of(record)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def __init__(self, engine: str, rank: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, object] = {"engine": engine, "pid": os.getpid()}
        if rank is not None:
            self._process["rank"] = rank

    def spell_lost(self, count: int) -> str:
        """Return the line in place of lost ones."""
        extra = told("lines.lost", lost=count)
        return self.format(logging.makeLogRecord({"name": __name__, "msg": spell_lost(count), **_WARNING, **extra}))

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            **self._process,
            "event": getattr(record, "event", "log"),
            **_ids_of(present()),
            **getattr(record, "fields", {}),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = _error_of(record)
        return _SPELL(line)


def _in_brackets(logged: LoggedRequest | None) -> str:
    if logged is None:
        return ""
    trace = logged.trace
    by = f" of {trace.asked_by}" if trace.asked_by else ""
    session = f", session {logged.session}" if logged.session else ""
    person = f", {logged.person}" if logged.person else ""
    ids = f"{trace.trace_id[:SHOWN_CHARACTERS]} {trace.span_id[:SHOWN_CHARACTERS]}"
    return f" [{ids} {logged.verb}{by}{session}{person}]"


def _ids_of(logged: LoggedRequest | None) -> dict[str, object]:
    if logged is None:
        return {}
    trace = logged.trace
    ids = {"trace_id": trace.trace_id, "span_id": trace.span_id, "asked_by": trace.asked_by}
    return {**ids, "verb": logged.verb, "person": logged.person, "session": logged.session}


def _error_of(record: logging.LogRecord) -> str:
    """Return the error of a record with its traceback."""
    assert record.exc_info is not None
    kind, error, trace = record.exc_info
    logged = present()
    if logged is None or logged.person is None:
        return "".join(traceback.format_exception(kind, error, trace)).rstrip()
    places = "".join(traceback.format_tb(trace))
    return f"Traceback (most recent call last):\n{places}{kind.__name__ if kind else 'error'}: {WITHHELD}"


# Lines of the log for what libraries print, and their warnings: with lines as JSON objects, theirs are too. Direct
# writes of C code to the descriptors are not caught; `StandardError` begins a line of its own after them.

MOST_CHARACTERS: Final = 2**16  # of an unfinished line


class _Begun(threading.local):
    """The beginning of a line that a thread has printed and not ended."""

    line: str = ""


class LoggedLines(io.TextIOBase):
    """Replaces a standard stream: logs each printed line, whole even where several threads print. Of a bar that is
    redrawn in one line only the last form is logged."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._log, self._descriptor = logging.getLogger(name), descriptor
        self._begun = _Begun()

    def write(self, text: str) -> int:
        *lines, rest = (self._begun.line + text).split("\n")
        self._begun.line = "" if len(rest) > MOST_CHARACTERS else rest
        for line in (*lines, rest) if len(rest) > MOST_CHARACTERS else lines:
            if shown := line.rstrip().rpartition("\r")[2]:
                self._log.info("%s", shown, extra=told("printed"))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the descriptor, for processes that are started."""
        return self._descriptor


@contextmanager
def libraries_logged() -> Iterator[None]:
    """Log what is printed, and warnings, within the block."""
    out, err = LoggedLines("stdout", 1), LoggedLines("stderr", 2)
    logging.captureWarnings(True)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        logging.captureWarnings(False)


# The log's way to standard error, by a thread of its own, so that no disk or pipe delays a pass or ends a thread. Who
# logs lays a line out and no more. It is written at once, or with others GATHER_SECONDS after those before it: to wake
# a thread for each costs several times the line. A log file that it goes to is begun anew when it is large
# (wire/logs.py). Lines that find no room, or that cannot be written, are counted, and the next one that can says
# how many.

MOST_WAITING: Final = 10_000  # lines
GATHER_SECONDS: Final = 0.02  # a warning does not wait; an engine that is killed takes these lines along
MOST_AT_ONCE: Final = 64  # lines, of which a log file may become longer than LOG_BYTES
CLOSE_SECONDS: Final = 2.0  # at most for what waits, at the end of a process whose standard error no one reads
OURS: Final = "djinn_jupyter"
_OUT, _ERR = 1, 2


class StandardError:
    """Writes lines to standard error, and rotates the file at `path` if standard error goes there; without `rotates` it
    continues in the file that another process has begun. `spell_lost` makes the line with the number of lost ones. It
    is not a handler of the standard library: those are locked at the end of a process, which would wait for a hanging
    one."""

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
        self._end = 0  # of the file, after the last write here
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
        """Write whole lines, on a line of their own even after a partial line of code in C."""
        end = os.fstat(_ERR).st_size
        if end != self._end and self._path is not None and _ends_in_half_a_line(self._path, end):
            text = b"\n" + text
        _write(text)
        self._end = end + len(text)

    def _look_at(self, path: Path) -> None:
        try:
            begun_anew = self._is_large(path) if self._rotates else _is_older(path)
            if begun_anew and self._rotates:
                rotate(path)
            if begun_anew:
                _go_on_in(path)
        except (OSError, UsageError):
            self._most_bytes += LOG_BYTES  # checked again when there is as much more

    def _is_large(self, path: Path) -> bool:
        found = os.fstat(_ERR)
        if not stat.S_ISREG(found.st_mode) or found.st_size < self._most_bytes:
            return False
        return os.path.samestat(found, path.stat())


class QueuedLines(QueueHandler):
    """Formats each line where it is logged, and lets a thread write the lines by `sink`, in that order. `close` lets it
    write the waiting ones."""

    queue: Queue[str | None]

    def __init__(self, formatter: logging.Formatter, sink: StandardError, most: int = MOST_WAITING) -> None:
        super().__init__(Queue(most))
        self.setFormatter(formatter)
        self._sink, self._closed = sink, False
        self._urgent = threading.Event()
        self._thread = threading.Thread(target=self._write, name="djinn-log", daemon=True)
        self._thread.start()

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record)

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.levelno >= logging.WARNING:
            self._urgent.set()

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that cannot be formatted, or finds no room."""
        self._sink.lost += 1

    @property
    def lost(self) -> int:
        """The lines that could not be written since the last success."""
        return self._sink.lost

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(Full):  # then the thread does not wait for a line
                self.queue.put_nowait(None)
            self._urgent.set()
            self._thread.join(CLOSE_SECONDS)
        super().close()

    def _write(self) -> None:
        at_once = 0.0  # from then on a line is written at once
        while not (self._closed and self.queue.empty()):
            first = self.queue.get()
            if (early := at_once - time.monotonic()) > 0:
                self._urgent.wait(early)
                self._urgent.clear()
            waiting = [first, *self._others()]
            self._sink.write([line for line in waiting if line is not None])
            at_once = 0.0 if len(waiting) == MOST_AT_ONCE else time.monotonic() + GATHER_SECONDS

    def _others(self) -> Iterator[str | None]:
        """Yield the other waiting lines, at most so many that the file is checked in time."""
        with suppress(Empty):
            for _ in range(MOST_AT_ONCE - 1):
                yield self.queue.get_nowait()


@contextmanager
def logging_to_standard_error(form: LogForm) -> Iterator[None]:
    """Log from this process to standard error. Libraries log from info on."""
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
    """Omit from records what our lines do not show: the place in the code, found by walking the stack, the thread and
    the process (https://docs.python.org/3/howto/logging.html#optimization)."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(_ERR, line) :]


def _ends_in_half_a_line(path: Path, end: int) -> bool:
    """Return whether standard error's file has a partial line before `end`; False where it is another file."""
    with suppress(OSError), path.open("rb") as file:
        if end and os.path.samestat(os.fstat(file.fileno()), os.fstat(_ERR)):
            return os.pread(file.fileno(), 1, end - 1) != b"\n"
    return False


def _is_older(path: Path) -> bool:
    """Return whether standard error goes to a log that was rotated since."""
    found = os.fstat(_ERR)
    return any(os.path.samestat(found, one.stat()) for one in with_older(path) if one != path)


def _go_on_in(path: Path) -> None:
    """Redirect standard output and error, also those of libraries in C, to the file at `path`."""
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for standard in (_OUT, _ERR):
            os.dup2(descriptor, standard)
    finally:
        os.close(descriptor)
