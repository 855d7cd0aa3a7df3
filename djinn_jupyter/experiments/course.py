"""The course of one run: its folder, its log, its time limit and the files it writes. Measures nothing."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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
    """`tell` writes a line to the log and the terminal, `tell_more` to the log where that goes into detail. Files are
    written as soon as there is something to write, so that a run that was stopped leaves what it had; `interrupted`
    marks them."""

    folder: Path
    log: logging.Logger
    place: Place = field(default_factory=Place)
    limit_seconds: float | None = None
    saves: bool = True
    begun: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    written: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, line: str) -> None:
        self.log.info(line)

    def tell_more(self, line: str) -> None:
        self.log.debug(line)

    def check_time(self) -> None:
        """Raise TimeIsUp past the limit. Asked between steps."""
        if self.limit_seconds is not None and self.elapsed > self.limit_seconds:
            raise TimeIsUp(
                f"The run has reached its limit of {self.limit_seconds / 60:.0f} minutes (`duration`); "
                "what it had measured is in its folder."
            )

    def write(self, name: str, fields: Mapping[str, Any]) -> Path:
        """One result file. Unmeasured fields become null, with `reasons` beside them."""
        reasons: dict[str, str] = {}
        plain = _plain(fields, "", reasons)
        if reasons:
            plain["reasons"] = reasons
        if self.interrupted:
            plain["interrupted"] = True
        self.written[name] = plain
        path = self.folder / name
        if self.saves:
            path.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n")
        return path

    def mark_interrupted(self) -> None:
        """Mark what was written so far as partial."""
        self.interrupted = True
        for name, fields in list(self.written.items()):
            self.write(name, fields)


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


@contextmanager
def concluded(course: Course) -> Iterator[None]:
    """Close the log at the end; a run that was broken off leaves its files marked so."""
    try:
        yield
    except BaseException:
        course.mark_interrupted()
        course.tell("Broken off; the files hold what was measured until then and are marked so.")
        raise
    finally:
        _close(course.log)


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
