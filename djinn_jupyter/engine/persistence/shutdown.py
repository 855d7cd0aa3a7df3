"""Orderly shutdown of an engine: its sessions move to the disk, where the next engine of the model finds them bit for
bit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.jobs import Job
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1
_ENDED: Final = (
    "The engine was stopped while session {} ran; the next one of the model brings it back as far as it came."
)


class OrderlyShutdown:
    """`hear` waits for mail for so many seconds at most, and reads it; `moving` is True while copies are under way."""

    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        residency: Residency,
        *,
        moving: Callable[[], bool],
        hear: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions, self._scheduler, self._residency = sessions, scheduler, residency
        self._moving, self._hear, self._clock = moving, hear, clock

    def put_away(self, seconds: float = SHUTDOWN_SECONDS) -> None:
        """Return when every session without work under way is on the disk, or the time is over: the last used first,
        one at a time, so that the end waits for one move at most. Breaks off runs. The next engine recomputes the
        sessions left behind from their tokens."""
        deadline, tried = self._clock() + seconds, set[str]()
        for job in self._scheduler.jobs:
            if job.kind == "run":
                self._break_off(job)
        while self._clock() < deadline:
            if not self._moving():
                leaving = self._next(tried)
                if leaving is None:
                    return
                tried.add(leaving.name)
                self._send(leaving)
            self._hear(_LOOK_SECONDS)
        log.warning("The time to put sessions away is over: the next engine recomputes some of them")

    def _break_off(self, job: Job) -> None:
        job.steps.close()
        self._scheduler.remove(job)
        job.session.break_off()
        self._sessions.changed(job.session.name)
        if job.for_request is not None:
            job.for_request.reply(Failed(code="EngineUnavailable", message=_ENDED.format(in_quotes(job.session.name))))

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
