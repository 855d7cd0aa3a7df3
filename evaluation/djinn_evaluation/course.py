"""The course of one run: its folder, log, time limit, result files, and its end from outside. Measures nothing."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from djinn_jupyter.errors import DjinnError, StorageFailed, UsageError

LOG_LINE = "%(asctime)s %(levelname)s %(message)s"
SHOWN_LINE = "%(asctime)s %(message)s"


class LogFile(logging.FileHandler):
    """Replaces an earlier log with its first line, or at `begin`. A disk error is told once; the run continues."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="w", delay=True)
        self._refused = False

    def begin(self) -> None:
        try:
            self.stream = self.stream or self._open()
        except OSError as error:
            self._refuse(error)

    def handleError(self, record: logging.LogRecord) -> None:
        self._refuse(sys.exc_info()[1])

    def _refuse(self, error: BaseException | None) -> None:
        if not self._refused:
            sys.stderr.write(f"djinn: the log {self.baseFilename} cannot be written: {error}.\n")
        self._refused = True

    def close(self) -> None:
        with suppress(OSError):  # unwritten lines are lost; `_refuse` has said so
            super().close()


def formatted(target: logging.Handler, pattern: str, level: str) -> logging.Handler:
    target.setFormatter(logging.Formatter(pattern))
    target.setLevel(level)
    return target


def close_log(log: logging.Logger) -> None:
    for target in list(log.handlers):
        log.removeHandler(target)
        target.close()


GOES_ON = "It is being ended, and its engine with it; another interrupt leaves the engine behind."


@dataclass(slots=True)
class Ending:
    """Raises in the run at the first signal; a second one, while the run is being ended, must not leave its engine
    running. A Ctrl-C that is the third signal or a later one raises."""

    time_is_up: Callable[[], Exception]
    tell: Callable[[str], None]
    asked: int = 0

    def ring(self, *_: object) -> None:
        if self._first():
            raise self.time_is_up()

    def interrupt(self, *_: object) -> None:
        if self._first() or self.asked > 2:
            raise KeyboardInterrupt
        self.tell(GOES_ON)

    def end(self, *_: object) -> None:
        if self._first():
            raise SystemExit(128 + signal.SIGTERM)

    def _first(self) -> bool:
        self.asked += 1
        return self.asked == 1


@contextmanager
def ended_from_outside(
    seconds: float | None, time_is_up: Callable[[], Exception], tell: Callable[[str], None]
) -> Iterator[None]:
    """Raise in the block `time_is_up()` after `seconds`, KeyboardInterrupt or SystemExit; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = Ending(time_is_up, tell)
    does = {signal.SIGALRM: ending.ring, signal.SIGTERM: ending.end, signal.SIGINT: ending.interrupt}
    before = {number: signal.signal(number, do) for number, do in does.items()}
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, did in before.items():
            signal.signal(number, did)


class TimeIsUp(DjinnError):
    """The run has reached the time limit of its configuration."""


class Undecided(DjinnError):
    """The run has no failure, and this machine left a verdict open; the report has been written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A field that could not be measured: `null` in the file, and its reason beside it."""

    reason: str


EARLIER = "earlier"  # the folder for the result files of an earlier run
REPORTS = ("report.html", "report.md")
NOT_YET = Unmeasured(reason="the run did not come to it")
NUMBERS = re.compile(r'\[\n([^\[\]{}"]*)\]')  # a list in JSON of neither strings, lists nor objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The place of an engine as `dj.connect` takes it, and the name or file of the user's `key` there."""

    place: str
    key: str | None = None

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The device of all sides (None: the best), the architecture whose weights are drawn, and an engine that runs."""

    device: str | None = None
    random: str | None = None
    server: ServerAddress | None = None

    def words(self) -> dict[str, Any]:
        """Return the keyword arguments for loading an engine or a baseline."""
        return {"device": self.device, "random_weights": self.random is not None}

    def named(self, model: str) -> str:
        """Return the model's name in the result files."""
        return model if self.random is None else f"{self.random} with random weights"


@dataclass(slots=True, kw_only=True)
class Course:
    """`tell` logs a line at INFO to the log and the terminal, `tell_more` at DEBUG. A result file exists from the
    beginning, with `status` partial until it is complete, so that a run that is broken off leaves its measurements.
    `files` names the files that a run of this kind may write: those of an earlier run are first moved to `EARLIER`."""

    folder: Path
    log: logging.Logger
    files: tuple[str, ...] = ()
    setup: Setup = field(default_factory=Setup)
    limit_seconds: float | None = None
    saves: bool = True
    begun: float = field(default_factory=time.monotonic)
    broken_off: bool = False
    owns_folder: bool = False
    afar: bool = False  # the engine is reached over a line: its process and its machine are not seen from here
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    measured_once: dict[str, Any] = field(default_factory=dict)  # what several parts of a run are held against
    undecided: list[str] = field(default_factory=list)  # sentences of verdicts that this machine left open
    remarks: list[str] = field(default_factory=list)  # sentences that a reader of the report has to know
    every_file: dict[str, Any] = field(default_factory=dict)  # fields of each result file of the run

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, line: str) -> None:
        self.log.info(line)

    def remark(self, sentence: str) -> None:
        """Have the report say this, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def leave_open(self, sentence: str) -> None:
        """Leave the run undecided for this reason, once, if it has no failure."""
        if sentence not in self.undecided:
            self.undecided.append(sentence)

    def concluded(self, failures: Sequence[str]) -> str:
        """Tell each failure and each verdict that was left open; return the run's status."""
        for said, sentences in (("FAILED", failures), ("UNDECIDED", self.undecided)):
            for sentence in sentences:
                self.tell(f"{said}: {sentence}")
        return "failed" if failures else "undecided" if self.undecided else "success"

    def tell_more(self, line: str) -> None:
        self.log.debug(line)

    @contextmanager
    def told_to(self, log_name: str) -> Iterator[None]:
        """Copy the lines logged within the block to a second log, `log_name`."""
        own = formatted(LogFile(self.folder / log_name), LOG_LINE, "INFO")
        self.log.addHandler(own)
        try:
            yield
        finally:
            self.log.removeHandler(own)
            own.close()

    def check_time(self) -> None:
        """Raise TimeIsUp past the limit. Called between steps; within a step an alarm raises it."""
        if self.limit_seconds is not None and self.elapsed > self.limit_seconds:
            raise self.time_is_up()

    def time_is_up(self) -> TimeIsUp:
        return TimeIsUp(
            f"The run has reached its limit of {(self.limit_seconds or 0) / 60:g} minutes (`duration`); "
            "what it had measured is in its folder."
        )

    def write(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Write one complete result file; return its content. Unmeasured fields are null, with their `reasons`."""
        self.written.pop(name, None)  # a report lists the files in the order in which they were completed
        found = self._put(name, fields)
        self.partial.discard(name)
        return found

    def write_partial(self, name: str, expected: Iterable[str], fields: Mapping[str, Any]) -> None:
        """Write one incomplete result file; `expected` fields without a value are null."""
        self.partial.add(name)
        self._put(name, {**dict.fromkeys(expected, NOT_YET), **fields, "status": "partial"})

    def break_off(self, error: BaseException) -> None:
        """Mark the incomplete files: partial where the run was ended from outside, else with the error."""
        self.broken_off = True
        ended = isinstance(error, TimeIsUp) or not isinstance(error, Exception)
        mark = {"interrupted": True} if ended else {"status": "error", "error": str(error)}
        for name in self.partial:
            self._save(name, {**self.written[name], **mark})

    def _put(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        reasons: dict[str, str] = {}
        plain: dict[str, Any] = _plain({**self.every_file, **fields}, "", reasons)
        return self._save(name, {**plain, "reasons": reasons} if reasons else plain)

    def _save(self, name: str, plain: dict[str, Any]) -> dict[str, Any]:
        if not self.owns_folder:
            self._take_the_folder()
        self.written[name] = plain
        if self.saves:
            self.put(name, _spelled(plain))
        return plain

    def put(self, name: str, text: str) -> None:
        """Write to a temporary file, then rename it: no reader sees half. StorageFailed where the disk refuses."""
        beside = self.folder / f".{name}"
        try:
            beside.write_text(text)
            beside.replace(self.folder / name)
        except OSError as error:
            with suppress(OSError):  # a disk that refuses the write may refuse this too
                beside.unlink()
            raise StorageFailed(f"{name} cannot be written to {self.folder}: {error.strerror}.") from None

    def _take_the_folder(self) -> None:
        """Move the result files of an earlier run to `EARLIER`, so that none is taken for one of this run."""
        self.owns_folder = True
        for target in self.log.handlers:
            if isinstance(target, LogFile):
                target.begin()
        for name in (*self.files, *REPORTS) if self.saves else ():
            if (self.folder / name).is_file():
                (self.folder / EARLIER).mkdir(exist_ok=True)
                (self.folder / name).replace(self.folder / EARLIER / name)


def begin(
    folder: Path,
    log_name: str,
    *,
    setup: Setup | None = None,
    limit_seconds: float | None = None,
    terminal: bool = True,
    saves: bool = True,
    files: tuple[str, ...] = (),
    level: str = "INFO",
    verbose: bool = False,
) -> Course:
    """Make the folder; the log has a timestamp on each line, and its first line replaces an earlier log.
    `level` is the lowest level logged; `verbose` shows DEBUG lines on the terminal. UsageError for no folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made a folder ({error.strerror}); name another one with --output-dir."
        ) from None
    log = logging.getLogger(f"djinn_evaluation.{folder}")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    close_log(log)
    log.addHandler(formatted(LogFile(folder / log_name), LOG_LINE, level))
    if terminal:
        shown = "DEBUG" if verbose else "INFO"
        log.addHandler(formatted(logging.StreamHandler(sys.stderr), SHOWN_LINE, shown))
    return Course(folder=folder, log=log, setup=setup or Setup(), limit_seconds=limit_seconds, saves=saves, files=files)


def conducted(
    course: Course, work: Callable[[Course], list[str]], report: Callable[[Course, list[str]], None]
) -> list[str]:
    """Run `work`; report however it ends, unless it wrote nothing. Undecided where a verdict was left open."""
    try:
        course.check_time()
        left = None if course.limit_seconds is None else course.limit_seconds - course.elapsed
        with ended_from_outside(left, course.time_is_up, course.tell):
            failures = _worked(course, work, report)
            report(course, failures)
    finally:
        close_log(course.log)
    if course.undecided and not failures:
        raise Undecided(" ".join(course.undecided))
    return failures


def _worked(
    course: Course, work: Callable[[Course], list[str]], report: Callable[[Course, list[str]], None]
) -> list[str]:
    try:
        return work(course)
    except BaseException as error:
        if course.written:
            why = str(error) if isinstance(error, Exception) else "The run was ended before it was over."
            try:
                course.break_off(error)
                report(course, [why])
            except StorageFailed as refused:  # logged, and the first error is raised
                course.tell(str(refused))
            course.tell(f"Broken off: {why} The files hold what was measured until then and are marked so.")
        raise


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any, path: str, reasons: dict[str, str]) -> Any:
    if isinstance(value, Unmeasured):
        reasons[path] = value.reason
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}".lstrip("."), reasons) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", reasons) for index, item in enumerate(value)]
    return value


def _spelled(plain: Mapping[str, Any]) -> str:
    """Return the text of a result file: a line for each value and for each list of numbers."""
    text = json.dumps(plain, indent=1, allow_nan=False)
    return NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call `work`; return its result and the milliseconds it took."""
    begun = time.perf_counter()
    made = work()
    return made, 1000 * (time.perf_counter() - begun)
