"""The work of the engine's thread between mails: slices for jobs, work that belongs to no request, and the orderly end.

The runs that shared a pass go on from it one behind the other: a slice of one takes less than the mail, the replies,
the upkeep and the look at the journal between two slices. Those that end there are answered together, and what they
report is published once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from djinn_jupyter.engine.loop.dispatch import Dispatcher, SessionLifecycle
from djinn_jupyter.engine.loop.owners import Owners
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.loop.replies import Accounting, StatePublisher
from djinn_jupyter.engine.loop.scheduler import Job
from djinn_jupyter.engine.memory.weights.residence import IdleSleep
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.log import WorkingOn, told
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.replies import Failed, Reply, SessionFailed
from djinn_jupyter.wire.texts import in_quotes


class Upkeep(BuiltOfParts):
    """An error in one piece of work is a fault, and the others are done all the same."""

    def __init__(
        self,
        parts: EngineParts,
        accounting: Accounting,
        idle_sleep: IdleSleep,
        state_publisher: StatePublisher,
        settle_moves: Callable[[], None],
    ) -> None:
        super().__init__(parts)
        self._accounting, self.idle_sleep, self._state_publisher = accounting, idle_sleep, state_publisher
        self._settle_moves = settle_moves
        self._checked = True  # the accounting, since the last work

    def rest(self) -> None:
        """Do the work of an idle engine."""
        if not self._checked and not len(self._scheduler):
            self._accounting.check_in_turn()
        with self._faults.during("it rested"):
            self._residency.rest()
        with self._faults.during("it settled moves of sessions"):
            self._settle_moves()
        self._state_publisher.recount_people()

    def move_sessions(self) -> None:
        """Load the sessions that are expected, and free room for stops."""
        with self._faults.during("it brought back sessions that are expected"):
            self._residency.fetch_returning()
        with self._faults.during("it made room for stops"):
            self._residency.relieve()

    def look_around(self, busy: bool) -> None:
        """Do the due work after each slice."""
        self._checked = not busy
        with self._faults.during("it put the weights to sleep"):
            self.idle_sleep.observe(busy)
        with self._faults.during("it looked at what other programs need"):
            self._residency.apply_pressure(self._state_publisher.outside)
        self._accounting.require_sound()
        with self._faults.during("it wrote the journal"):
            self._persistence.attend(self._sessions, idle=not busy)
        with self._faults.during("it told of the journal"):
            self._state_publisher.report_journal(self._persistence.trouble, self._persistence.unkept)


log = logging.getLogger(__name__)

TURN: Final = told("turn")


class Turns(BuiltOfParts):
    """However a job ends, its request gets one reply and the other jobs continue."""

    def __init__(self, parts: EngineParts, dispatcher: Dispatcher, life: SessionLifecycle, owners: Owners) -> None:
        super().__init__(parts)
        self._dispatcher, self._life, self._owners = dispatcher, life, owners

    def advance_next(self) -> bool:
        """Give the job whose turn it is a slice, then the later runs whose pass was computed with another's, until mail
        comes. Return False where no job had a turn or ended."""
        jobs = len(self._scheduler)
        job = first = self._choose(self._scheduler.next)
        while job is not None:
            self.advance(job)
            job = self._choose(lambda: self._scheduler.next_if(self._was_answered))
        return first is not None or len(self._scheduler) < jobs

    def _choose(self, choose: Callable[[], Job | None]) -> Job | None:
        """Return the chosen job. If choosing fails, end all jobs: none could get a turn any more."""
        try:
            return choose()
        except Exception as error:  # noqa: BLE001  the edge of all requests
            for job in self._scheduler.jobs:
                self._conclude(job, self._broke(job, error))
            return None

    def _was_answered(self, job: Job) -> bool:
        """True for a run whose pass was computed with another's: its slice draws a token and takes a seat."""
        return job.kind == "run" and self._runtime.sharing.answered(job.session)

    def advance(self, job: Job) -> None:
        """Run one slice of a job, and conclude it where it ends."""
        with WorkingOn(job.logged_as):
            self._advance(job)

    def _advance(self, job: Job) -> None:
        log.debug("A turn of session %r", job.session.name, extra=TURN)
        try:
            self._owners.pause_over_time(job)
            with self._parts.running_time.counted(job.asker):
                self._sessions.touch(job.session.name)
                self._scheduler.begin_slice(job)
                if job.kind == "run":
                    self._sessions.changed(job.session.name)
                job.advance()
            return
        except StopIteration as done:
            reply: Reply | None = done.value
        except Exception as error:  # noqa: BLE001  the request's edge
            reply = self._broke(job, error)
        finally:
            self._scheduler.end_slice()
            with self._faults.during("it counted what a slice has made"):
                self._residency.accounted(job.session)
        self._conclude(job, reply)

    def _broke(self, job: Job, error: Exception) -> Failed:
        """Close a failed job: a run leaves its session idle at its last committed step. Return the failure."""
        failure = self._faults.reply_to(error)
        with self._faults.during("it ended a job"):
            job.steps.close()
        if job.kind == "run" and job.session.state == "running":
            self._life.break_off(job.session)
            failed = SessionFailed(session=job.session.name, code=failure.code, message=failure.message)
            self._runtime.publish(failed)
        return failure

    def _conclude(self, job: Job, reply: Reply | None) -> None:
        self._scheduler.remove(job)
        if not len(self._scheduler) and job.session.frame is None:
            with self._faults.during("it fetched layers ahead"):
                self._forward.weights.prefetch()
        with self._faults.during("it concluded a job"):
            if reply is not None:
                self._dispatcher.answer_job(job, reply)
        self._dispatcher.retry(job.session)
        self._residency.room_changed()


SHUTDOWN_SECONDS: Final = 20.0
BETWEEN_MOVES_SECONDS: Final = 0.1
ENDED: Final = (
    "The engine was stopped while session {} ran; the next one of the model brings it back as far as it came."
)


class OrderlyShutdown(BuiltOfParts):
    """`clock` is monotonic."""

    def __init__(self, parts: EngineParts, dispatcher: Dispatcher, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parts)
        self._dispatcher, self._clock = dispatcher, clock

    def put_away(self, seconds: float = SHUTDOWN_SECONDS) -> None:
        """Return when every session without running work is on the disk, or the time is over: the last used first, one
        at a time, so that the end waits for at most one move. Interrupts runs. The next engine recomputes the other
        sessions from their tokens."""
        deadline, tried = self._clock() + seconds, set[str]()
        for job in self._scheduler.jobs:
            if job.kind == "run":
                self._break_off(job)
        while self._clock() < deadline:
            if not self._parts.tiers.moving:
                leaving = self._next(tried)
                if leaving is None:
                    return
                tried.add(leaving.name)
                self._send(leaving)
            self._mailbox.wait(BETWEEN_MOVES_SECONDS)
            self._dispatcher.read_mail()
        log.warning("The time to put sessions away is over: the next engine recomputes some of them")

    def _break_off(self, job: Job) -> None:
        job.steps.close()
        self._scheduler.remove(job)
        job.session.break_off()
        self._sessions.changed(job.session.name)
        if job.for_request is not None:
            job.for_request.reply(Failed(code="EngineUnavailable", message=ENDED.format(in_quotes(job.session.name))))

    def _next(self, tried: set[str]) -> Session | None:
        staying = by_last_use(s for s in self._sessions.values() if s.name not in tried and _may_go(s))
        return staying[-1] if staying else None

    def _send(self, session: Session) -> None:
        try:
            self._residency.swap_out(session, "disk")
        except DjinnError as error:
            log.info("Session %r is not put away: %s", session.name, error)


def _may_go(session: Session) -> bool:
    here = session.residence
    has_rows = session.generation is not None and not session.needs_recompute
    return has_rows and session.work is None and here.state in ("resident", "host") and here.moving is None
