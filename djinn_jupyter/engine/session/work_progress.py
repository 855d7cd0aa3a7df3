"""The progress of work in a session, and its end with the parts that are done, where a Pause asks for that."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from djinn_jupyter.wire.progress import Progress


@dataclass(slots=True)
class WorkProgress:
    """`now` is None where no work is under way, or none that tells; `told` is when a client was last told. `ending` is
    None where there are no parts to reply with yet, and True where the work is to reply with those that there are."""

    now: Progress | None = None
    told: float = -math.inf
    ending: bool | None = None

    def note(self, now: Progress) -> None:
        self.now = now

    def is_due(self, seconds: float) -> bool:
        """Return whether it was told so many seconds ago, and then note that it is told now."""
        now = time.monotonic()
        due = now - self.told >= seconds
        self.told = now if due else self.told
        return due

    def can_end(self) -> bool:
        """Note that there are parts to reply with. Return True where the work is to end with them."""
        self.ending = self.ending or False
        return self.ending

    def end(self) -> bool:
        """Have the work end with the parts that are done. Return False where there are none."""
        self.ending = None if self.ending is None else True
        return self.ending is not None
