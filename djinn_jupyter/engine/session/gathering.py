"""Runs that begin together: the rows of a batch arrive one after another, and wait until no other has come for a
while. Meanwhile the engine's thread has nothing to do, and lets the one that reads requests have Python's lock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from djinn_jupyter.engine.session.seats import Seat
from djinn_jupyter.engine.session.steps import Pieces

QUIET_S: Final = 0.008  # Python has a thread that reads requests wait up to 5 ms for its lock


class Gathering:
    """Waits until `seated` has been the same number for QUIET_S. The first run looks at the clock, and the others wait
    for it."""

    def __init__(self, seated: Callable[[], int]) -> None:
        self._seated = seated
        self._quiet_at: float | None = None

    @property
    def due_in(self) -> float:
        """The seconds until the runs that gather go on, if no other comes before; infinite where none gather."""
        return math.inf if self._quiet_at is None else max(0.0, self._quiet_at - time.monotonic())

    def gathered(self, seat: Seat) -> Pieces:
        """Wait with the other runs that begin."""
        if self._quiet_at is not None:
            yield lambda: seat.waits and self._quiet_at is not None
            return
        try:
            yield from self._until_quiet(seat)
        finally:
            self._quiet_at = None

    def _until_quiet(self, seat: Seat) -> Pieces:
        seated = 0
        while seated != self._seated():
            seated, self._quiet_at = self._seated(), time.monotonic() + QUIET_S
            yield partial(self._another_may_come, seat, seated)

    def _another_may_come(self, seat: Seat, seated: int) -> bool:
        return seat.waits and self._seated() == seated and self.due_in > 0
