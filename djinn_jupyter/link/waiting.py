"""The line on a call that waits: what it does, how far it is, and how to stop it, once it has taken a second. The
outermost call of a thread shows it, in a notebook or terminal in place, elsewhere once. One whose caller shows its
progress shows nothing, nor does any where DJINN_STATIC asks for final forms."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Final, TextIO

from djinn_jupyter.link.naming import is_static, notebook_path


def beside_debuggers(thread: threading.Thread) -> threading.Thread:
    """Mark a thread so that Python's debugger leaves it running when it stops the program (ipykernel sets the same
    marks on its threads): at a long breakpoint the engine would otherwise receive no message from this client."""
    for mark in ("pydev_do_not_trace", "is_pydev_daemon_thread"):
        setattr(thread, mark, True)
    return thread


class TerminalProgress:
    """Writes to standard error. Outside a terminal it writes only the steps, rewrites nothing, and gives a wait one
    line. In a notebook that line is an output of its own, updated in place, because standard error is drawn there as a
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
        """Show the line of a wait. False where it cannot be rewritten: then it is written at most once."""
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


FIRST_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.5


class Wait:
    """A wait of `work`, which an interrupt `ends`; `far` is its progress. A `quiet` one is never shown."""

    def __init__(self, work: str, ends: str, *, quiet: bool) -> None:
        self.work, self.ends, self.quiet, self.far, self.whole = work, ends, quiet, "", ""
        self._began, self._terminal = time.monotonic(), TerminalProgress()

    def look(self, *, elsewhere: bool = True) -> None:
        """Show the line if it is time; where it cannot be rewritten, once, and not at all unless `elsewhere`."""
        if not self.quiet and time.monotonic() - self._began >= FIRST_SECONDS:
            with suppress(OSError, ValueError):  # a stream that was closed
                self.quiet = not self._terminal.wait(f"{self}; an interrupt {self.ends}", elsewhere=elsewhere)

    def step(self, said: str) -> None:
        self.far = said

    def end(self) -> None:
        with suppress(OSError, ValueError):
            self._terminal.end(str(self))

    def __str__(self) -> str:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        return f"{self.work}: {self.far}, {seconds}" if self.far else f"{self.work}: {seconds}"


_present: Final[ContextVar[Wait | None]] = ContextVar("wait", default=None)


def far(said: str) -> None:
    """Set the progress of the present wait, such as "200 of 3,072 cells"."""
    if (wait := _present.get()) is not None:
        wait.whole = said
        wait.step(said)


def far_within(said: str) -> None:
    """Set the progress of the present part, shown after the progress of the whole."""
    if (wait := _present.get()) is not None:
        wait.step(f"{wait.whole}, {said}" if wait.whole else said)


def look() -> None:
    """Show the present wait if it is time, in the waiting thread."""
    if (wait := _present.get()) is not None:
        wait.look(elsewhere=False)


@contextmanager
def waited(work: str, ends: str = "ends it", *, quiet: bool = False) -> Iterator[Wait]:
    """Let `look` show the wait within the block, unless it is part of another wait."""
    present = _present.get()
    if present is not None:
        yield present
        return
    main = threading.current_thread() is threading.main_thread()
    wait = Wait(work, ends, quiet=quiet or not main or is_static())
    token = _present.set(wait)
    try:
        yield wait
    finally:
        _present.reset(token)
        wait.end()


@contextmanager
def waiting(work: str, ends: str = "ends it", *, quiet: bool = False) -> Iterator[Wait]:
    """Let a thread show the wait, whatever the work within does meanwhile."""
    within = _present.get() is not None
    with waited(work, ends, quiet=quiet) as wait:
        if within or wait.quiet:
            yield wait
            return
        over = threading.Event()

        def tick() -> None:
            while not over.wait(TICK_SECONDS):
                wait.look()

        thread = beside_debuggers(threading.Thread(target=copy_context().run, args=(tick,), daemon=True))
        thread.start()
        try:
            yield wait
        finally:
            over.set()
            thread.join()
