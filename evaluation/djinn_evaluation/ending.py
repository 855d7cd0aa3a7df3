"""End a run from outside, by its time limit, Ctrl-C or SIGTERM: once, for ending an engine takes a moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

GOES_ON = "It is being ended, and its engine with it; another interrupt leaves the engine behind."


@dataclass(slots=True)
class Ending:
    """Raises in the run at the first signal; a second one, while the run is being ended, must not leave its engine
    running. A Ctrl-C that is the third signal or a later one raises."""

    time_is_up: Callable[[], Exception]
    tell: Callable[[str], None]
    asked: int = 0

    def ring(self, *_: object) -> None:
        if self._first():
            raise self.time_is_up()

    def interrupt(self, *_: object) -> None:
        if self._first() or self.asked > 2:
            raise KeyboardInterrupt
        self.tell(GOES_ON)

    def end(self, *_: object) -> None:
        if self._first():
            raise SystemExit(128 + signal.SIGTERM)

    def _first(self) -> bool:
        self.asked += 1
        return self.asked == 1


@contextmanager
def ended_from_outside(
    seconds: float | None, time_is_up: Callable[[], Exception], tell: Callable[[str], None]
) -> Iterator[None]:
    """Raise in the block `time_is_up()` after `seconds`, KeyboardInterrupt at Ctrl-C, SystemExit at SIGTERM.
    Signals come to the main thread alone; in other threads nothing is raised."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = Ending(time_is_up, tell)
    does = {signal.SIGALRM: ending.ring, signal.SIGTERM: ending.end, signal.SIGINT: ending.interrupt}
    before = {number: signal.signal(number, do) for number, do in does.items()}
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, did in before.items():
            signal.signal(number, did)
