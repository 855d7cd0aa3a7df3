"""Jobs: work for one session each, in steps that yield to other jobs."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.log.logged import LoggedRequest
from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import (
    Blocked,
    JobKind,
    Pieces,
    Steps,
)
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.reply_base import ReplyBase


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Work for one session that ends in the reply to `for_request`. A `run` moves the session, a `look` leaves it as it
    is. `blocked` is what its steps yielded last: None, or a function that is True while the job must wait.
    Without a request the job is done for the requests queued for the session."""

    kind: JobKind
    session: Session
    steps: Steps[ReplyBase] | Pieces
    for_request: QueuedRequest | None
    blocked: Blocked | None = None

    def advance(self) -> None:
        """Do the next step. Raises StopIteration with the reply at the end."""
        self.blocked = next(self.steps)

    @property
    def person(self) -> str:
        """The user whose turn its slices are: the one who asked, else its session's owner."""
        return self.session.owner if self.for_request is None else self.for_request.holder.user

    @property
    def asker(self) -> str | None:
        """The person whose key asked for it, else the one whose session it is; None for the engine's own user."""
        return person_of(self.session.name) if self.for_request is None else self.for_request.holder.person

    @property
    def logged_as(self) -> LoggedRequest | None:
        """The request that it is done for, as the log knows it."""
        return None if self.for_request is None else self.for_request.logged_as

    @property
    def waits(self) -> bool:
        return self.blocked is not None and self.blocked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """The result of a verb whose steps are for a session that is not, or not yet, in the engine's table."""

    session: Session
    steps: Steps[ReplyBase]
