"""The time that the engine has worked for each person within the last day. Knows no quota."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

DAY_SECONDS: Final = 24 * 3600.0
STEP_SECONDS: Final = 600.0  # the time of so long is kept as one number, and forgotten together


class RunningTime:
    """Seconds of the engine's thread by person, None being the engine's own user; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: dict[str | None, deque[tuple[int, float]]] = {}

    @property
    def persons(self) -> tuple[str | None, ...]:
        """Those for whom it has worked since it began."""
        return tuple(self._steps)

    @contextmanager
    def counted(self, person: str | None) -> Iterator[None]:
        """Count the time that passes within for a person."""
        begun = self._clock()
        try:
            yield
        finally:
            self.add(person, self._clock() - begun)

    def add(self, person: str | None, seconds: float) -> None:
        steps = self._steps.setdefault(person, deque())
        step, last = self._step(), steps.pop() if steps else None
        if last is not None and last[0] == step:
            seconds += last[1]
        elif last is not None:
            steps.append(last)
        steps.append((step, seconds))

    def seconds(self, person: str | None) -> float:
        """Return the seconds within the last day."""
        steps = self._steps.get(person, deque())
        while steps and steps[0][0] <= self._step() - DAY_SECONDS / STEP_SECONDS:
            steps.popleft()
        return sum(seconds for _, seconds in steps)

    def _step(self) -> int:
        return int(self._clock() // STEP_SECONDS)
