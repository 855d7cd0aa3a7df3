"""Show an engine's start in a terminal: one line per step, the present step rewritten in place each second."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import TextIO


class TerminalProgress:
    """Writes to standard error. Where that is not a terminal, writes only the steps and rewrites nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = 0

    def line(self, line: str) -> None:
        self.clear()
        self._stream.write(f"{line}\n")

    def second(self, line: str) -> None:
        if not self._stream.isatty():
            return
        self.clear()
        cut = line[: shutil.get_terminal_size().columns - 1]
        self._stream.write(cut)
        self._stream.flush()
        self._shown = len(cut)

    def clear(self) -> None:
        """Erase the line of the present step."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()
