"""The rotation of jobs, a slice each. A job is a generator that yields between two layers or two tokens.

Running sessions alternate by decode steps; a prefill yields at every layer and never holds them up. People have equal
turns, however many sessions each of them runs.
"""

from __future__ import annotations

from collections.abc import Callable

from djinn_jupyter.engine.scheduling.fair_turns import FairTurns
from djinn_jupyter.engine.scheduling.jobs import Job
from djinn_jupyter.engine.scheduling.lockstep import Lockstep
from djinn_jupyter.engine.session.session import Session


class Scheduler:
    """The jobs in rotation, or, where `lockstep` is set, in the order of the layers. A session has at most one.
    `waiting` of them have nothing to do until another thread is done."""

    def __init__(self, lockstep: Lockstep | None = None) -> None:
        self._jobs = FairTurns()
        self.lockstep = lockstep
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs)

    @property
    def running(self) -> int:
        return sum(job.kind == "run" for job in self._jobs)

    def add(self, job: Job) -> None:
        """Add a job: a look, which is short, before its person's runs."""
        job.session.begin_work(job.kind)
        self._jobs.add(job)

    def begin_wait(self) -> None:
        """Note that a job has nothing to do until another thread is done."""
        self.waiting += 1

    def end_wait(self) -> None:
        self.waiting -= 1

    def job_of(self, session: Session) -> Job | None:
        return next((job for job in self._jobs if job.session is session), None)

    def others_go_on(self, session: Session, of: Callable[[Session], bool] = lambda session: True) -> bool:
        """True where a job of another of the sessions `of` does not wait, nor look again whether it has room."""
        others = (job for job in self._jobs if job.session is not session and of(job.session))
        return any(not job.session.residence.parked and not job.waits for job in others)

    def another_is_ready(self, than: Job | None) -> bool:
        """True where a job besides this one does not wait."""
        return any(job is not than and not job.waits for job in self._jobs)

    def next(self) -> Job | None:
        """Return the job whose turn it is and move it to the end of the rotation. None when there is none, or all
        wait."""
        ready = self._jobs.ready()
        if self.lockstep is None:
            chosen = next(ready, None)
        else:
            chosen = self.lockstep.choose(jobs) if (jobs := list(ready)) else None
        if chosen is not None:
            self._jobs.take(chosen)
        return chosen

    def next_if(self, short: Callable[[Job], bool]) -> Job | None:
        """Return the job whose turn it is and move it to the end of the rotation, where its slice is short; else None,
        and the turn is still its. None in the order of the layers, too."""
        chosen = next(self._jobs.ready(), None) if self.lockstep is None else None
        if chosen is None or not short(chosen):
            return None
        self._jobs.take(chosen)
        return chosen

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)
        job.session.end_work()
