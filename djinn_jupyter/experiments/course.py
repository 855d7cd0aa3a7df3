"""The course of one run: its folder, its log, its time limit and the files it writes. Measures nothing."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from djinn_jupyter.errors import DjinnError


class TimeIsUp(DjinnError):
    """The run has reached the time limit of its configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A field that could not be measured: `null` in the file, and its reason beside it."""

    reason: str


NOT_YET = Unmeasured(reason="the run did not come to it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where all sides of a run compute, and with what: `device` such as cuda:1, None for the best there is; `random`
    names the architecture where weights are drawn and not read."""

    device: str | None = None
    random: str | None = None

    def words(self) -> dict[str, Any]:
        """As engines and baselines are asked."""
        return {"device": self.device, "random_weights": self.random is not None}

    def named(self, model: str) -> str:
        """What the result files call the model."""
        return model if self.random is None else f"{self.random} with random weights"


@dataclass(slots=True, kw_only=True)
class Course:
    """`tell` writes a line to the log and the terminal, `tell_more` to the log where that goes into detail. A file is
    there from the beginning, `status` partial until it is whole, so that a run that ends anyhow leaves what it had."""

    folder: Path
    log: logging.Logger
    place: Place = field(default_factory=Place)
    limit_seconds: float | None = None
    saves: bool = True
    begun: float = field(default_factory=time.monotonic)
    broken_off: bool = False
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, line: str) -> None:
        self.log.info(line)

    def tell_more(self, line: str) -> None:
        self.log.debug(line)

    def check_time(self) -> None:
        """Raise TimeIsUp past the limit. Asked between steps; within one an alarm does."""
        if self.limit_seconds is not None and self.elapsed > self.limit_seconds:
            raise self.time_is_up()

    def time_is_up(self) -> TimeIsUp:
        return TimeIsUp(
            f"The run has reached its limit of {(self.limit_seconds or 0) / 60:g} minutes (`duration`); "
            "what it had measured is in its folder."
        )

    def write(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """One result file that is whole, as it is then read. Unmeasured fields become null, with `reasons` beside
        them."""
        self.written.pop(name, None)  # a report has them in the order in which they were done
        found = self._put(name, fields)
        self.partial.discard(name)
        return found

    def write_partial(self, name: str, expected: Iterable[str], fields: Mapping[str, Any]) -> None:
        """One result file as far as it is; what else is `expected` is null."""
        self.partial.add(name)
        self._put(name, {**dict.fromkeys(expected, NOT_YET), **fields, "status": "partial"})

    def break_off(self, error: BaseException) -> None:
        """Mark the files that are not whole: partial where the run was ended from outside, else with the error."""
        self.broken_off = True
        ended = isinstance(error, TimeIsUp) or not isinstance(error, Exception)
        mark = {"interrupted": True} if ended else {"status": "error", "error": str(error)}
        for name in self.partial:
            self._save(name, {**self.written[name], **mark})

    def _put(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        reasons: dict[str, str] = {}
        plain: dict[str, Any] = _plain(fields, "", reasons)
        return self._save(name, {**plain, "reasons": reasons} if reasons else plain)

    def _save(self, name: str, plain: dict[str, Any]) -> dict[str, Any]:
        """Beside its place first: nobody ever reads half a file."""
        self.written[name] = plain
        if self.saves:
            beside = self.folder / f".{name}"
            beside.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n")
            beside.replace(self.folder / name)
        return plain


def begin(
    folder: Path,
    log_name: str,
    *,
    place: Place | None = None,
    limit_seconds: float | None = None,
    terminal: bool = True,
    saves: bool = True,
    level: str = "INFO",
    verbose: bool = False,
) -> Course:
    """Make the folder and open the log, with a timestamp on each line. `level` is the least of what the log holds;
    `verbose` shows detail on the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger(f"djinn_jupyter.experiments.{folder}")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    _close(log)
    log.addHandler(
        _formatted(logging.FileHandler(folder / log_name, mode="w"), "%(asctime)s %(levelname)s %(message)s", level)
    )
    if terminal:
        shown = "DEBUG" if verbose else "INFO"
        log.addHandler(_formatted(logging.StreamHandler(sys.stderr), "%(asctime)s %(message)s", shown))
    return Course(folder=folder, log=log, place=place or Place(), limit_seconds=limit_seconds, saves=saves)


def conducted(
    course: Course, work: Callable[[Course], list[str]], report: Callable[[Course, list[str]], None]
) -> list[str]:
    """What `work` says against a pass. However it ends, by Ctrl-C too, a report is written; but not where it was
    refused before there was a file: those of an earlier run are left alone."""
    try:
        with _ended_from_outside(course):
            failures = work(course)
    except BaseException as error:
        if course.written:
            course.break_off(error)
            why = str(error) if isinstance(error, Exception) else "The run was ended before it was over."
            course.tell(f"Broken off: {why} The files hold what was measured until then and are marked so.")
            report(course, [why])
        raise
    else:
        report(course, failures)
    finally:
        _close(course.log)
    return failures


@contextmanager
def _ended_from_outside(course: Course) -> Iterator[None]:
    """Raises wherever the run is: TimeIsUp at its limit, SystemExit when its process is told to end. Signals come to
    the main thread alone; elsewhere the limit is looked at between steps."""
    course.check_time()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise course.time_is_up()

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = {number: signal.signal(number, do) for number, do in ((signal.SIGALRM, ring), (signal.SIGTERM, end))}
    if course.limit_seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, course.limit_seconds - course.elapsed))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, did in before.items():
            signal.signal(number, did)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _formatted(target: logging.Handler, pattern: str, level: str) -> logging.Handler:
    target.setFormatter(logging.Formatter(pattern))
    target.setLevel(level)
    return target


def _close(log: logging.Logger) -> None:
    for target in list(log.handlers):
        log.removeHandler(target)
        target.close()


def _plain(value: Any, path: str, reasons: dict[str, str]) -> Any:
    if isinstance(value, Unmeasured):
        reasons[path] = value.reason
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}".lstrip("."), reasons) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", reasons) for index, item in enumerate(value)]
    return value


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and the milliseconds it took."""
    begun = time.perf_counter()
    made = work()
    return made, 1000 * (time.perf_counter() - begun)
