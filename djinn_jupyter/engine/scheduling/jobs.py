"""Jobs: work for one session each, in steps that give way to others."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.scheduling.mailbox import Letter
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import (
    Blocked,
    JobKind,
    Pieces,
    Steps,
)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Work for one session that ends in the reply to `letter`. A `run` moves the session, a `look` leaves it as it is.
    What its steps yielded last, a function where it has to wait for something, says whether it still does. Without a
    letter it is done for those that wait for the session."""

    kind: JobKind
    session: Session
    steps: Steps | Pieces
    letter: Letter | None
    blocked: Blocked | None = None

    @property
    def waits(self) -> bool:
        return self.blocked is not None and self.blocked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """What a verb returns whose steps are for a session that is not, or not yet, among the engine's."""

    session: Session
    steps: Steps
