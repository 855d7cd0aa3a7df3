"""Begin and end sessions and break off their runs, telling every part of the engine and every client concerned."""

from __future__ import annotations

from collections.abc import Callable

from djinn_jupyter.engine.requests.answers import Answers
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.scheduling.waiting import Waiting
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.wire.replies import Event, Failed, Reply, SessionClosed, SessionOpened
from djinn_jupyter.wire.texts import in_quotes


class SessionLifecycle:
    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        residency: Residency,
        waiting: Waiting,
        answers: Answers,
        faults: Faults,
        publish: Callable[[Event], None],
    ) -> None:
        self._sessions, self._scheduler, self._residency = sessions, scheduler, residency
        self._waiting, self._answers, self._faults, self._publish = waiting, answers, faults, publish

    def begin(self, session: Session) -> Session:
        self._sessions.add(session)
        self._publish(SessionOpened(session=session.name))
        return session

    def end(self, session: Session) -> int:
        """Remove a session and free its pages. Return the number of pages it held."""
        job = self._scheduler.job_of(session)
        if job is not None:
            with self._faults.during(f"it ended the work of {in_quotes(session.name)}"):
                job.steps.close()
            self._scheduler.remove(job)
            if job.for_request is not None:
                closed = Failed(code="IllegalMove", message=f"Session {in_quotes(session.name)} was closed.")
                self._answers.add(job.for_request, closed)
        self.answer_waiting(
            session, Failed(code="UnknownSession", message=f"Session {in_quotes(session.name)} was closed meanwhile.")
        )
        pages = session.cache.statistics().pages
        session.cache.free()
        self._sessions.remove(session)
        self._residency.closed(session)
        self._residency.room_changed()
        return pages

    def close(self, session: Session) -> int:
        """End a session and tell the clients. Return the number of pages it held."""
        session.move("close")
        pages = self.end(session)
        self._publish(SessionClosed(session=session.name))
        return pages

    def answer_waiting(self, session: Session, reply: Reply) -> None:
        """Give this reply to all requests queued for the session."""
        while session in self._waiting:
            self._answers.add(self._waiting.take(session), reply)

    def break_off(self, session: Session) -> None:
        """End the session's run, which failed. A prompt of which it has fed nothing is no part of the line then."""
        with self._faults.during(f"it broke off the run of {in_quotes(session.name)}"):
            session.break_off()
            session.drop_unread_prompt()
