"""Show a wait or an engine's start: one line per step, the present step rewritten in place each second."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Any, TextIO

from djinn_jupyter.client.engines.naming import notebook_path


class TerminalProgress:
    """Writes to standard error. Where that is no terminal, writes only the steps and rewrites nothing; of a wait one
    line. A notebook has that line as an output of its own, updated in place: standard error is drawn there as a
    fault."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = 0
        self._output: Any = None

    def line(self, line: str) -> None:
        self.clear()
        self._stream.write(f"{line}\n")

    def second(self, line: str) -> None:
        if self._stream.isatty():
            self._rewrite(line)

    def wait(self, line: str, *, elsewhere: bool) -> bool:
        """Show the line of a wait. False where it cannot be rewritten: then it was written once, if at all."""
        if self._in_notebook:
            self._display(line)
            return True
        if self._stream.isatty():
            self._rewrite(line)
            return True
        if elsewhere:
            self.line(line)
        return False

    def end(self, line: str) -> None:
        """End a wait: erase its line, or in a notebook leave this one, where it was shown."""
        if self._output is not None:
            self._display(line)
        self.clear()

    def clear(self) -> None:
        """Erase the line of the present step."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0

    @property
    def _in_notebook(self) -> bool:
        return type(self._stream).__module__.startswith("ipykernel") and notebook_path() is not None

    def _display(self, line: str) -> None:
        shown = {"text/plain": line}
        if self._output is None:  # a notebook's kernel has imported it
            self._output = sys.modules["IPython.display"].display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)

    def _rewrite(self, line: str) -> None:
        self.clear()
        cut = line[: shutil.get_terminal_size().columns - 1]
        self._stream.write(cut)
        self._stream.flush()
        self._shown = len(cut)

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()
