"""Slices for jobs: whose turn it is gets one, and what comes out of a job is answered. Reads no mail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.engine.pace import Pace
from djinn_jupyter.engine.residency.stop_room import accounted
from djinn_jupyter.engine.scheduler import Job
from djinn_jupyter.engine.session import Session
from djinn_jupyter.wire.replies import Failed, Reply, SessionFailed

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


class Turns:
    """Whatever comes out of a slice, the job's letter gets one reply and the other jobs go on."""

    def __init__(self, engine: Engine, pace: Pace) -> None:
        self._engine, self.pace = engine, pace
        self._prefilling = self._in_step = False

    def wanted_elsewhere(self) -> bool:
        """Asked between layers: is there mail, or another job whose turn it is?"""
        if self._prefilling:
            self.pace.keep()
        engine = self._engine
        return engine.mailbox.waiting or (len(engine.scheduler) > 1 and (self._prefilling or self._in_step))

    def advance_next(self) -> bool:
        """Give the job whose turn it is a slice; False where there is none."""
        try:
            job = self._engine.scheduler.next()
        except Exception as error:  # noqa: BLE001  whoever's it is: nobody would get a turn any more
            for job in self._engine.scheduler.jobs:
                self._conclude(job, self._broke(job, error))
            return True
        if job is not None:
            self.advance(job)
        return job is not None

    def advance(self, job: Job) -> None:
        """One slice of a job."""
        try:
            self._prepare(job)
            job.blocked = next(job.steps)
            return
        except StopIteration as done:
            reply: Reply | None = done.value
        except Exception as error:  # noqa: BLE001  the request's edge
            reply = self._broke(job, error)
        finally:
            with self._engine.faults.during("it counted what a slice has made"):
                accounted(self._engine, job.session)
        self._conclude(job, reply)

    def _prepare(self, job: Job) -> None:
        frame, lockstep = job.session.frame, self._engine.scheduler.lockstep
        self._engine.bulletin.touch(job.session.name)
        self._in_step = lockstep is not None and lockstep.steps_aside(job, self._engine.scheduler.running)
        self._prefilling = job.letter is None or (frame is not None and len(frame.tokens) > 1)
        if job.kind == "run":
            self._engine.keeping.touch(job.session.name)

    def _broke(self, job: Job, error: Exception) -> Failed:
        """A run that broke leaves its session at the last committed step, idle; a look leaves it as it was."""
        failure = self._engine.faults.reply_to(error)
        with self._engine.faults.during("it ended a job"):
            job.steps.close()
        if job.kind == "run" and job.session.state == "running":
            self.break_off(job.session)
            failed = SessionFailed(session=job.session.name, code=failure.code, message=failure.message)
            self._engine.publish(failed)
        return failure

    def _conclude(self, job: Job, reply: Reply | None) -> None:
        self._engine.scheduler.remove(job)
        with self._engine.faults.during("it concluded a job"):
            if reply is not None:
                self._engine.letters.answer_job(job, reply)
        self._engine.letters.take_up(job.session)
        self.room_changed()

    def break_off(self, session: Session) -> None:
        """The session's run does not go on."""
        with self._engine.faults.during(f"it broke off the run of {session.name!r}"):
            session.break_off()

    def room_changed(self) -> None:
        """A session does no more what it did, or is gone: who waits for room looks again."""
        self._engine.swapping.changes += 1
        with self._engine.faults.during("it moved sessions between tiers"):
            self._engine.swapping.advance_all()
