"""The rotation of jobs, a slice each. A job is a generator that yields between two layers or two tokens.

Running sessions alternate by decode steps; a prefill yields at every layer and never holds them up.
"""

from __future__ import annotations

from collections import deque

from djinn_jupyter.engine.scheduling.jobs import Job
from djinn_jupyter.engine.scheduling.lockstep import Lockstep
from djinn_jupyter.engine.session.session import Session


class Scheduler:
    """The jobs in rotation, or, where `lockstep` is set, in the order of the layers. A session has at most one.
    `waiting` of them have nothing to do until another thread is done."""

    def __init__(self, lockstep: Lockstep | None = None) -> None:
        self._jobs: deque[Job] = deque()
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
        """Add a job: a look, which is short, before the runs."""
        job.session.begin_work(job.kind)
        if job.kind == "look":
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)

    def begin_wait(self) -> None:
        """Note that a job has nothing to do until another thread is done."""
        self.waiting += 1

    def end_wait(self) -> None:
        self.waiting -= 1

    def job_of(self, session: Session) -> Job | None:
        return next((job for job in self._jobs if job.session is session), None)

    def others_go_on(self, session: Session) -> bool:
        """True where a job of another session does not wait."""
        return any(not job.waits for job in self._jobs if job.session is not session)

    def next(self) -> Job | None:
        """Return the job whose turn it is and move it to the end of the rotation. None when there is none, or all
        wait."""
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
        job.session.end_work()
