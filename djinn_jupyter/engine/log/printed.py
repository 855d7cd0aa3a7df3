"""Lines of the log for what libraries print and warn of: where each line is an object of JSON, theirs are too.

Code in C that writes to the descriptors by itself is not met here; `StandardError` begins a line of its own behind it.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Final

from djinn_jupyter.engine.log.lines import told

MOST_CHARACTERS: Final = 2**16  # of a line that does not end


class _Begun(threading.local):
    """The beginning of a line, which a thread has printed and not ended."""

    line: str = ""


class LoggedLines(io.TextIOBase):
    """In place of a standard stream: logs each line that is printed, whole also where several threads print. Of a bar
    that is drawn over and over in one line the last is logged."""

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
    """Log what is printed and warned of within."""
    out, err = LoggedLines("stdout", 1), LoggedLines("stderr", 2)
    logging.captureWarnings(True)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        logging.captureWarnings(False)
