"""The needs of a request on its session, and what it changes, by the terms of its class."""

from __future__ import annotations

from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import requests as ask


def changed_by(request: ask.Request) -> tuple[str, ...]:
    """Return the names of the sessions that a request may have changed."""
    if not isinstance(request, ask.SessionRequest) or not type(request).terms.changes:
        return ()
    made = request.made
    return (request.session,) if made in (None, request.session) else (request.session, made)


def kept_with(request: ask.Request) -> tuple[str, ...]:
    """Return the names of the sessions that keep the reply to a request, because it may not be done twice: those that
    it changes, and the one that it writes to a checkpoint."""
    if isinstance(request, ask.SessionRequest) and request.saved is not None:
        return (request.session,)
    return changed_by(request)


def lacks_bytes(session: Session, request: ask.Request) -> bool:
    """True where the request needs data of the session that is off the device."""
    here = session.residence
    if here.present or type(request).terms.while_away:
        return False
    return not (request.forgets and here.state in ("host", "disk"))


def lacks_rows(session: Session, request: ask.Request) -> bool:
    """True where the request reads or continues from rows and states lost with an earlier process."""
    return session.needs_recompute and not type(request).terms.without_rows and not request.forgets
