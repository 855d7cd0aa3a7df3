"""The decision to yield a pass between two layers: mail has come, or it is another job's turn."""

from __future__ import annotations

from djinn_jupyter.engine.scheduling.jobs import Job
from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.system.prefill_throttle import PrefillThrottle


class GivingWay:
    def __init__(self, mailbox: Mailbox, scheduler: Scheduler, throttle: PrefillThrottle) -> None:
        self._mailbox, self._scheduler, self.throttle = mailbox, scheduler, throttle
        self._prefilling = self._in_step = False
        self._job: Job | None = None

    def prepare(self, job: Job) -> None:
        """Prepare for a slice of the job: prefills yield to other jobs after each layer, and so do runs in lockstep."""
        self._job, frame, lockstep = job, job.session.frame, self._scheduler.lockstep
        self._in_step = lockstep is not None and lockstep.steps_aside(job, self._scheduler.running)
        self._prefilling = job.for_request is None or (frame is not None and len(frame.tokens) > 1)

    def end_slice(self) -> None:
        """Hold the job no longer: its session may be closed next, and is freed with it."""
        self._job = None

    @property
    def for_mail(self) -> bool:
        """True where mail has come, which is read before another slice."""
        return self._mailbox.waiting

    def alone(self) -> bool:
        """True where no other job is in the rotation, not even one that waits."""
        return len(self._scheduler) <= 1

    def asked(self) -> bool:
        """True where the pass must yield; passes ask between layers."""
        if self._prefilling:
            self.throttle.keep()
        if self._mailbox.waiting:
            return True
        return (self._prefilling or self._in_step) and self._scheduler.another_is_ready(self._job)
