"""The progress of work that reads in a session of its own. Values only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.frozen import Frozen

FewWords = Annotated[str, Meta(max_length=64)]


class Progress(Frozen, frozen=True):
    """`done` of `total` of what is `counted`, such as cells or layers; `total` is None where more may follow than the
    engine was asked for yet. `doing` is a verb's form: sweeping."""

    doing: FewWords
    done: int
    total: int | None
    counted: FewWords = "prompts"

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.doing}, {self.done:,} {self.counted} so far"
        return f"{self.doing}, {self.done:,} of {self.total:,} {self.counted}"


class WorkProgressed(EventBase):
    """The work in a session is so far, told some times a second."""

    progress: Progress
