"""The engine double's refusals by ownership: the engine's own rule, for a client that is
the kernel of one notebook."""

from __future__ import annotations

from djinn_jupyter.engine.session.table import is_anothers, refusal
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire import nouns, requests
from djinn_jupyter.wire.texts import label

ASKER = ("kernel-1", "work/paris.ipynb")


class OwnedSession:
    """A session as its description tells of it: the double enters no session that was recovered for another."""

    def __init__(self, told: nouns.SessionDescription) -> None:
        self.holder, self.notebook = told.holder, told.notebook
        self.holder_notebook = None if told.holder is None else told.notebook


class Owned:
    sessions: dict[str, nouns.SessionDescription]

    def require_own(self, request: requests.OwnerRequest) -> None:
        there = self.sessions.get(request.session)
        if there is None or request.force or not is_anothers(there, *ASKER):
            return
        deed = request.deed
        if deed is not None:
            raise SessionsWouldSuffer(refusal(OwnedSession(there), label(there.name), deed))
