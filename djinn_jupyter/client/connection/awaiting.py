"""Waiting for a reply in the caller's thread, who is told when the line to the engine goes down, when it is back, and
how far a large reply is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from djinn_jupyter.client import waiting
from djinn_jupyter.client.connection.arrivals import Answer
from djinn_jupyter.client.connection.so_far import SoFar

Result = TypeVar("Result")
LOOK_SECONDS: Final = 0.5
TOLD_SECONDS: Final = 2.0  # a line that is back sooner is not worth a word
SHOWN_SECONDS: Final = 1.0  # nor is a reply that has arrived by then


class LineNotice:
    """Says once that the line is down, and once that it is back, in the thread that looks."""

    def __init__(
        self,
        place: Callable[[], str],
        down_since: Callable[[], float | None],
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._place, self._down_since, self._say = place, down_since, say or _on_stderr
        self._told: str | None = None  # the place of the engine whose line is down

    def look(self) -> None:
        since = self._down_since()
        if since is None and self._told is not None:
            before, self._told = self._told, None
            self._say(_back(before, self._place()))
        elif since is not None and self._told is None and (down := time.time() - since) >= TOLD_SECONDS:
            self._told = self._place()
            self._say(
                f"The line to {self._told} has been down for {down:.0f} s. What was asked for goes on when it is "
                "back; an interrupt ends the waiting."
            )


def _back(before: str, now: str) -> str:
    if before == now:
        return f"The line to {now} is back."
    return f"The engine at {before} is at {now} now, and the line to it is back."


def awaited(future: Future[Result], look: Callable[[], None]) -> Result:
    """Return the result of a future. `look` is called every LOOK_SECONDS until it is there, and once more then."""
    with waiting.waited("The engine", "ends the waiting"):
        try:
            while not future.done():
                with suppress(TimeoutError):
                    return future.result(LOOK_SECONDS)
                look()
                waiting.look()
            return future.result(0)
        finally:
            look()


class Receiving(Protocol):
    @property
    def progress(self) -> SoFar | None: ...
    @property
    def latest(self) -> SoFar | None: ...


class Show(Protocol):
    """Shows how far a large reply is; `over` once it has arrived, or was given up."""

    def __call__(self, progress: SoFar, *, over: bool) -> None: ...


class ReceivingNotice:
    """Has `show` called, in the thread that looks, for a large reply that takes a while."""

    def __init__(self, receiving: Callable[[], Receiving]) -> None:
        self._receiving = receiving
        self.show: Show = OnStderr()
        self._shows = False

    def look(self) -> None:
        receiving = self._receiving()
        progress, latest = receiving.progress, receiving.latest
        if progress is not None and progress.seconds >= SHOWN_SECONDS:
            self._shows = True
            self.show(progress, over=False)
        elif progress is None and latest is not None and self._shows:
            self._shows = False
            self.show(latest, over=True)


class AwaitedReply(Future[Answer]):
    """The future of a reply. The thread that waits for it without a limit is told of a line that is down, and how far a
    large reply is. `given_up` is called where an interrupt ends its waiting."""

    def __init__(self, look: Callable[[], None], given_up: Callable[[], None]) -> None:
        super().__init__()
        self.number: int | None = None  # once it is sent
        self._look, self._given_up = look, given_up

    def result(self, timeout: float | None = None) -> Answer:
        if timeout is not None:
            return super().result(timeout)
        try:
            return awaited(self, self._look)
        except KeyboardInterrupt:
            self._given_up()
            raise


class OnStderr:
    """Says once how large the reply is and how long it may take."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, progress: SoFar, *, over: bool) -> None:
        if not over and not self._said:
            said = str(progress)
            _on_stderr(f"{said[0].upper()}{said[1:]}. An interrupt ends it, and the session stays as it is.")
        self._said = not over


def _on_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
