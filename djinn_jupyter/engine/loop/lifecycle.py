"""Begin and end sessions and break off their runs, telling every part of the engine and every client concerned."""

from __future__ import annotations

import logging
from collections.abc import Callable

from djinn_jupyter.engine.loop.open_requests import OpenRequests
from djinn_jupyter.engine.loop.replies import lacks_bytes
from djinn_jupyter.engine.loop.scheduler import Scheduler
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Event, Failed, SessionClosed, SessionOpened, SessionSwapped
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)


class SessionLifecycle:
    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        residency: Residency,
        open_requests: OpenRequests,
        faults: Faults,
        publish: Callable[[Event], None],
    ) -> None:
        self._sessions, self._scheduler, self._residency = sessions, scheduler, residency
        self._open, self._faults, self._publish = open_requests, faults, publish

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
                self._open.answer(job.for_request, closed)
        self._open.answer_all(
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

    def break_off(self, session: Session) -> None:
        """End the session's run, which failed. A prompt of which it has fed nothing is no part of the line then."""
        with self._faults.during(f"it broke off the run of {in_quotes(session.name)}"):
            session.break_off()
            session.drop_unread_prompt()

    def moved(self, session: Session, transfer: Transfer | None) -> None:
        """Tell of the end of a move between device and tiers. `transfer` is None where it failed: the session's
        residence has its error, which the queued requests get that needed the move, up to the first that did not."""
        self._sessions.touch(session.name)
        if transfer is not None:
            _log(session.name, transfer)
            self._publish(SessionSwapped(session=session.name, transfer=transfer))
            if session.residence.state == "disk":
                self._sessions.changed(session.name)  # the journal says from now on where its pages are
        error = session.residence.error
        while error is not None and session in self._open and lacks_bytes(session, self._open.first(session).request):
            self._open.answer(self._open.take(session), Failed.of(error))


def _log(session: str, moved: Transfer) -> None:
    """Log the end of a move, in the words that the original's users look for."""
    if moved.direction == "out":
        line = "evicted: session %r, %d bytes to the %s in %.6f s (%s)"
    else:
        line = "restored: session %r, %d bytes from the %s in %.6f s (%s)"
    log.info(line, session, moved.bytes_moved, moved.tier, moved.seconds, moved.cause)
