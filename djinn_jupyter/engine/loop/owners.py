"""The refusal of requests that only a session's own notebook may make, for every request by one rule: it names its
deed, `ownership` the owner of the session. And of those that only its person may make, or who it is shared with.

The rule is the engine's, because a rule of the client's is one that an HTTP request goes past. Runs and edits are free
for all: who makes them has entered the session with --join, or clicks on it where two people look together.
"""

from __future__ import annotations

from typing import Any

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable, is_anothers, refusal
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.remote.engine.persons import require_granted
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of, sessions_in
from djinn_jupyter.wire.texts import told_apart


class Owners:
    def __init__(self, sessions: SessionTable, residency: Residency) -> None:
        self._sessions, self._residency = sessions, residency

    def require_shared(self, request: ask.Request, sender: Holder) -> None:
        """Raise UsageError or UnknownSession where the request is about another person's session and not granted."""
        if sender.person is not None:
            for name in sessions_in(request).values():
                self._require_granted(request, name, sender.person)

    def _require_granted(self, request: ask.Request, name: str, person: str) -> None:
        if person_of(name) == person:
            return
        session = self._sessions.get(name)
        require_granted(request, name, session.shares.access(person) if session is not None else None)

    def require_own(self, request: ask.Request, sender: Holder) -> None:
        """Raise SessionsWouldSuffer where the request would end what belongs to another notebook, without `force`."""
        if not isinstance(request, ask.OwnerRequest) or request.force:
            return
        session, deed = self._sessions.get(request.session), request.deed
        if session is None or deed is None or self._residency.holder_has_gone(session):
            return
        asker = asker_of(request, sender, session)
        if is_anothers(session, asker.name, asker.notebook):
            shown = told_apart(self._sessions)[session.name]
            raise SessionsWouldSuffer(refusal(session, shown, deed))


def asker_of(request: ask.OwnerRequest[Any], sender: Holder, session: Session) -> Holder:
    """Return the holder that asks: the one that a server names, else the sender. A kernel that has the session open has
    told its notebook itself, by the path that it had then: a server knows only the present one."""
    if request.for_holder is None and request.for_notebook is None:
        return sender
    opened = request.for_holder is not None and request.for_holder == session.holder
    notebook = session.holder_notebook if opened else request.for_notebook
    return Holder(name=request.for_holder or sender.name, user=sender.user, notebook=notebook)
