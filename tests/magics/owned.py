"""The engine double's refusals by ownership: the engine's own rule and its handlers' declarations, for a client that is
the kernel of one notebook."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from djinn_jupyter.engine.session.ownership import is_anothers, refusal
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire import nouns, requests
from djinn_jupyter.wire.names import label

if TYPE_CHECKING:
    from djinn_jupyter.engine.requests.needs import RequestNeeds

ASKER = ("kernel-1", "work/paris.ipynb")


@functools.cache
def declared() -> RequestNeeds:
    """Return what the handlers declare. They bring the whole engine, so only a request for another's session asks."""
    from djinn_jupyter.engine.requests.handlers import HANDLED_BY
    from djinn_jupyter.engine.requests.needs import RequestNeeds

    return RequestNeeds(*HANDLED_BY)


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
        deed = declared().of(request).owner_only(request)
        if deed is not None:
            raise SessionsWouldSuffer(refusal(OwnedSession(there), label(there.name), deed))
