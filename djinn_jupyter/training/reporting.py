"""Reports on a training while it goes on, and its end before the last step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Report = Callable[[int, int, Tensor], bool]
"""It is given the steps done, of how many, and the loss of the last. True ends the training with what it has."""


def never(done: int, of: int, loss: Tensor) -> bool:
    return False


@dataclass(slots=True)
class Remembered:
    """A report that remembers how far the training came."""

    report: Report
    done: int = 0
    of: int = 0
    ended: bool = False

    def __call__(self, done: int, of: int, loss: Tensor) -> bool:
        self.done, self.of, self.ended = done, of, self.report(done, of, loss)
        return self.ended
