"""The rows that one call of a layer may have: learned from how long calls take, or from earlier work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_SECONDS: Final = 0.02  # of one call of a layer, or one section of it, so that others' requests wait no longer
TOO_SLOW: Final = 5 * MOST_SECONDS
SLOW_CALLS: Final = 3  # one behind the other: here rows that were enough elsewhere are too many
FIRST_ROWS: Final = 256  # of the first call, before any was measured


class CallPlan:
    """The most rows of each call, in turn, as pairs (rows, calls): those `given`, and behind them what is
    learned. By the same plan the same rows share each call, and so have the same bits."""

    def __init__(self, given: Sequence[tuple[int, int]] = ()) -> None:
        self._given = [[rows, calls] for rows, calls in reversed(given)]
        self._made: list[list[int]] = []
        self._slow = 0  # calls up to the present one

    @property
    def made(self) -> tuple[tuple[int, int], ...]:
        """The most rows of the calls up to now."""
        return tuple((rows, calls) for rows, calls in self._made)

    def next(self, learned: int) -> int:
        """Return the most rows of the next call."""
        rows = learned
        if self._given:
            rows = self._given[-1][0]
            self._given[-1][1] -= 1
            if self._given[-1][1] < 1:
                self._given.pop()
        if self._made and self._made[-1][0] == rows:
            self._made[-1][1] += 1
        else:
            self._made.append([rows, 1])
        return rows

    def note(self, seconds: float) -> None:
        """Count a call. Several that are too slow end what was given; a single one may be Python's collector's."""
        self._slow = self._slow + 1 if seconds > TOO_SLOW else 0
        if self._slow == SLOW_CALLS:
            self._given.clear()


@dataclass(slots=True)
class CallSize:
    """The number of rows that one call of a layer may have, learned from the calls made, or from the longest section of
    each, where the `plan` has none."""

    rows: int = FIRST_ROWS
    plan: CallPlan = field(default_factory=CallPlan)

    def of_next(self) -> int:
        """Return the most rows of the next call."""
        return self.plan.next(self.rows)

    def note(self, rows: int, seconds: float) -> None:
        """Count a call. Grows at most twofold at a time, for the first calls of a process are slow or lucky; shrinks
        after a call that took too long alone, for a small one says nothing of a large one."""
        fitting = max(1, int(rows * MOST_SECONDS / max(seconds, 1e-6)))
        self.rows = fitting if seconds > MOST_SECONDS else max(self.rows, min(fitting, 2 * self.rows))
        self.plan.note(seconds)
