"""Whose turn it is. A job is a generator that gives way between two layers or two tokens; the rotation is a slice each.

Running sessions alternate by decode steps, and a prefill, which gives way at every layer, never holds them up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from djinn_jupyter.engine.mailbox import Letter
from djinn_jupyter.wire.replies import Reply

if TYPE_CHECKING:
    from djinn_jupyter.engine.lockstep import Lockstep
    from djinn_jupyter.engine.session import Session

Blocked = Callable[[], bool]
Steps = Generator[Blocked | None, None, Reply]
JobKind = Literal["run", "look"]


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Work for one session that ends in the reply to `letter`. A `run` moves the session, a `look` leaves it as it is.
    What its steps yielded last, a function where it has to wait for something, says whether it still does. Without a
    letter it is done for those that wait in the session."""

    kind: JobKind
    session: Session
    steps: Steps | Generator[Blocked | None, None, None]
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


class Scheduler:
    """The jobs in rotation, or, where `lockstep` is set, as the layers come. A session has at most one. `waiting` of
    them have nothing to do until another thread is done."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self.lockstep: Lockstep | None = None
        self.waiting = 0
        self.preemptions = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs)

    @property
    def running(self) -> int:
        return sum(job.kind == "run" for job in self._jobs)

    def add(self, job: Job) -> None:
        """Short work goes first: a look before the runs."""
        job.session.job = job
        if job.kind == "look":
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)

    def next(self) -> Job | None:
        """The job whose turn it is, moved to the end of the rotation. None when there is none, or all wait."""
        if self.lockstep is not None:
            ready = [job for job in self._jobs if not job.waits]
            if not ready:
                return None
            chosen = self.lockstep.choose(ready)
            self._jobs.remove(chosen)
            self._jobs.append(chosen)
            return chosen
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            if not job.waits:
                return job
        return None

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)
        job.session.job = None
