"""The needs of each kind of request, read from its handler's class: known before any handler is built."""

from __future__ import annotations

from djinn_jupyter.engine.requests.handles import Needs, marked
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import requests as ask


class RequestNeeds:
    """`parts` are the classes whose methods are marked by `@handles`."""

    def __init__(self, *parts: type) -> None:
        self._needs = {request: needs for part in parts for _, request, needs in marked(part)}

    def of(self, request: ask.RequestBase) -> Needs:
        return self._needs.get(type(request), Needs())

    def changed_by(self, request: ask.RequestBase) -> tuple[str, ...]:
        """Return the names of the sessions that a request may have changed."""
        if not isinstance(request, ask.SessionRequest) or not self.of(request).changes:
            return ()
        return (request.session, request.name) if isinstance(request, ask.Fork) else (request.session,)

    def kept_with(self, request: ask.RequestBase) -> tuple[str, ...]:
        """Return the names of the sessions that keep the reply to a request, because it may not be done twice: those
        that it changes, and the one that it writes to a checkpoint."""
        return (request.session,) if isinstance(request, ask.SaveCheckpoint) else self.changed_by(request)

    def lacks_bytes(self, session: Session, request: ask.Request) -> bool:
        """True where the request needs data of the session that is off the device."""
        here = session.residence
        if here.present or self.of(request).while_away:
            return False
        return not (isinstance(request, ask.Run) and not request.extend and here.state in ("host", "disk"))

    def lacks_rows(self, session: Session, request: ask.Request) -> bool:
        """True where the request reads or continues from rows and states lost with an earlier process."""
        begins_anew = isinstance(request, ask.Run) and not request.extend
        return session.needs_recompute and not self.of(request).without_rows and not begins_anew
