"""The rotation of jobs, a slice each. A job is a generator that yields between two layers or two tokens: when mail has
come, or it is another job's turn.

Running sessions alternate by decode steps; a prefill yields at every layer and never holds them up. People have equal
turns, however many sessions each of them runs.
"""

from __future__ import annotations

from collections.abc import Callable

from djinn_jupyter.engine.scheduling.fair_turns import FairTurns
from djinn_jupyter.engine.scheduling.jobs import Job
from djinn_jupyter.engine.scheduling.lockstep import Lockstep
from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.prefill_throttle import PrefillThrottle


class Scheduler:
    """The jobs in rotation, or, where `lockstep` is set, in the order of the layers. A session has at most one.
    `waiting` of them have nothing to do until another thread is done."""

    def __init__(self, mailbox: Mailbox, throttle: PrefillThrottle, lockstep: Lockstep | None = None) -> None:
        self._mailbox, self.throttle, self.lockstep = mailbox, throttle, lockstep
        self._jobs = FairTurns()
        self.waiting = 0
        self._at_turn: Job | None = None
        self._prefilling = self._in_step = False

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

    def alone(self) -> bool:
        """True where no other job is in the rotation, not even one that waits."""
        return len(self._jobs) <= 1

    def begin_slice(self, job: Job) -> None:
        """Prepare for a slice of the job: prefills yield to other jobs after each layer, and so do runs in lockstep."""
        self._at_turn, frame = job, job.session.frame
        self._in_step = self.lockstep is not None and self.lockstep.steps_aside(job, self.running)
        self._prefilling = job.for_request is None or (frame is not None and len(frame.tokens) > 1)

    def end_slice(self) -> None:
        """Hold the job no longer: its session may be closed next, and is freed with it."""
        self._at_turn = None

    def asked(self) -> bool:
        """True where the pass must yield; passes ask between layers."""
        if self._prefilling:
            self.throttle.keep()
        if self._mailbox.waiting:
            return True
        return (self._prefilling or self._in_step) and any(
            job is not self._at_turn and not job.waits for job in self._jobs
        )

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
        """Return the job whose turn it is and move it to the end of the rotation, where its slice is short and no mail
        has come; else None, and the turn is still its. None in the order of the layers, too."""
        if self._mailbox.waiting or self.lockstep is not None:
            return None
        chosen = next(self._jobs.ready(), None)
        if chosen is None or not short(chosen):
            return None
        self._jobs.take(chosen)
        return chosen

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)
        job.session.end_work()
