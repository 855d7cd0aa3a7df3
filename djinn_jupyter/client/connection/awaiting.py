"""Waiting for a reply in the caller's thread, who is told when the line to the engine goes down and when it is back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from djinn_jupyter.wire.replies import Reply

Result = TypeVar("Result")
LOOK_SECONDS: Final = 0.5
TOLD_SECONDS: Final = 2.0  # a line that is back sooner is not worth a word


class LineNotice:
    """Says once that the line is down, and once that it is back, in the thread that looks."""

    def __init__(
        self,
        engine: str,
        down_since: Callable[[], float | None],
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._engine, self._down_since, self._say = engine, down_since, say or _on_stderr
        self._told = False

    def look(self) -> None:
        since = self._down_since()
        if since is None and self._told:
            self._told = False
            self._say(f"The line to {self._engine} is back.")
        elif since is not None and not self._told and (down := time.time() - since) >= TOLD_SECONDS:
            self._told = True
            self._say(
                f"The line to {self._engine} has been down for {down:.0f} s. What was asked for goes on when it is "
                "back; an interrupt ends the waiting."
            )


def awaited(future: Future[Result], look: Callable[[], None]) -> Result:
    """Return the result of a future. `look` is called every LOOK_SECONDS until it is there, and once more then."""
    try:
        while not future.done():
            with suppress(TimeoutError):
                return future.result(LOOK_SECONDS)
            look()
        return future.result(0)
    finally:
        look()


class AwaitedReply(Future[Reply]):
    """The future of a reply. The thread that waits for it without a limit is told of a line that is down."""

    def __init__(self, notice: LineNotice) -> None:
        super().__init__()
        self._notice = notice

    def result(self, timeout: float | None = None) -> Reply:
        return awaited(self, self._notice.look) if timeout is None else super().result(timeout)


def _on_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
