"""The log of a run, in a file and on the terminal. Knows no run."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

LOG_LINE = "%(asctime)s %(levelname)s %(message)s"
SHOWN_LINE = "%(asctime)s %(message)s"


class LogFile(logging.FileHandler):
    """Replaces an earlier log with its first line, or at `begin`. Where the disk refuses, it says so once on standard
    error and the run goes on: results come first."""

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
