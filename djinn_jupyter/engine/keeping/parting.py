"""An engine that ends in order: its sessions go to the disk, where the next one of the model finds them bit for bit."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.replies import Failed

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine
    from djinn_jupyter.engine.scheduler import Job
    from djinn_jupyter.engine.session import Session

log = logging.getLogger(__name__)

PARTING_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1
_ENDED: Final = (
    "The engine was stopped while session {!r} ran; the next one of the model brings it back as far as it came."
)


def put_away(engine: Engine, seconds: float = PARTING_SECONDS) -> None:
    """Return when every session that nobody looks at lies on the disk, or the time is over: the last used first, one
    at a time, so that the end waits for one at most. Runs are broken off. Whoever stays behind is made again from its
    tokens."""
    deadline, tried = time.monotonic() + seconds, set[str]()
    for job in engine.scheduler.jobs:
        if job.kind == "run":
            _break_off(engine, job)
    while time.monotonic() < deadline:
        if not engine.tiers.moving:
            leaving = _next(engine, tried)
            if leaving is None:
                return
            tried.add(leaving.name)
            _send(engine, leaving)
        engine.mailbox.wait(_LOOK_SECONDS)
        engine.read_mail()
    log.warning("The time to put sessions away is over: the next engine recomputes some of them")


def _break_off(engine: Engine, job: Job) -> None:
    job.steps.close()
    engine.scheduler.remove(job)
    job.session.break_off()
    engine.keeping.touch(job.session.name)
    if job.letter is not None:
        job.letter.reply(Failed(code="EngineUnavailable", message=_ENDED.format(job.session.name)))


def _next(engine: Engine, tried: set[str]) -> Session | None:
    staying = [s for s in engine.sessions.values() if s.name not in tried and _may_go(s)]
    return max(staying, key=lambda session: session.residence.touched, default=None)


def _may_go(session: Session) -> bool:
    here = session.residence
    has_rows = session.line is not None and not session.lost
    return has_rows and session.job is None and here.state in ("resident", "host") and here.moving is None


def _send(engine: Engine, session: Session) -> None:
    try:
        engine.swapping.swap_out(session, "disk", "asked")
    except DjinnError as error:
        log.info("Session %r is not put away: %s", session.name, error)
