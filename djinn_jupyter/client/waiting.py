"""The line on a call that waits: what it does, how far it is, and how to stop it, once it has taken a second.

The outermost call of a thread shows it, in a notebook or terminal in place, elsewhere once. One whose caller shows its
progress shows nothing, nor does any where DJINN_STATIC asks for final forms."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Final

from djinn_jupyter.client.connection.own_threads import beside_debuggers
from djinn_jupyter.client.engines.terminal import TerminalProgress

FIRST_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.5


class Wait:
    """A wait of `work`, which an interrupt `ends`; `far` is how far it is. A `quiet` one is never shown."""

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
    """Say how far the present wait is, such as "200 of 3,072 cells"."""
    if (wait := _present.get()) is not None:
        wait.whole = said
        wait.step(said)


def far_within(said: str) -> None:
    """Say how far the present part is, behind how far the whole is."""
    if (wait := _present.get()) is not None:
        wait.step(f"{wait.whole}, {said}" if wait.whole else said)


def look() -> None:
    """Show the present wait if it is time, in the thread that waits."""
    if (wait := _present.get()) is not None:
        wait.look(elsewhere=False)


@contextmanager
def waited(work: str, ends: str = "ends it", *, quiet: bool = False) -> Iterator[Wait]:
    """Have the waiting within be shown by `look`, unless it is part of another wait."""
    present = _present.get()
    if present is not None:
        yield present
        return
    main = threading.current_thread() is threading.main_thread()
    wait = Wait(work, ends, quiet=quiet or not main or os.environ.get("DJINN_STATIC", "0") not in ("", "0"))
    token = _present.set(wait)
    try:
        yield wait
    finally:
        _present.reset(token)
        wait.end()


@contextmanager
def waiting(work: str, ends: str = "ends it", *, quiet: bool = False) -> Iterator[Wait]:
    """Have it be shown by a thread, whatever the work within does meanwhile."""
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
