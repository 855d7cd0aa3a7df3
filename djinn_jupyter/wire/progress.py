"""The progress of work that reads in a session of its own: a sweep, a collection, a score. Values only."""

from __future__ import annotations

from typing import Final, Literal

from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.frozen import Frozen

Doing = Literal[
    "sweeping", "collecting", "computing losses", "computing logits", "reading heads", "attributing", "patching edges"
]
# The others count prompts.
COUNTED: Final[dict[Doing, str]] = {
    "sweeping": "cells",
    "reading heads": "lines",
    "attributing": "layers",
    "patching edges": "passes",
}


class Progress(Frozen, frozen=True):
    """`done` of `total` cells, prompts, lines or layers; `total` is None where more may follow than the engine
    was asked for yet."""

    doing: Doing
    done: int
    total: int | None

    def __str__(self) -> str:
        counted = COUNTED.get(self.doing, "prompts")
        if self.total is None:
            return f"{self.doing}, {self.done:,} {counted} so far"
        return f"{self.doing}, {self.done:,} of {self.total:,} {counted}"


class WorkProgressed(EventBase):
    """The work in a session is so far, told some times a second."""

    progress: Progress
