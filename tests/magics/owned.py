"""The engine double's refusals by ownership: the engine's own rule, for a client that is the kernel of one notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from djinn_jupyter.engine.session.ownership import is_anothers, refusal
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire import nouns, requests
from djinn_jupyter.wire.names import label

ASKER = ("kernel-1", "work/paris.ipynb")
DEEDS: dict[type, Callable[[Any], str | None]] = {
    requests.Open: lambda request: "forget what it holds" if request.fresh else None,
    requests.Close: lambda request: "close it",
    requests.RestoreCheckpoint: lambda request: "restore over it" if request.replace else None,
}


class Owned:
    sessions: dict[str, nouns.SessionDescription]

    def require_own(self, request: requests.OwnerRequest) -> None:
        there, deed = self.sessions.get(request.session), DEEDS[type(request)](request)
        if there is not None and deed is not None and not request.force and is_anothers(there, *ASKER):
            raise SessionsWouldSuffer(refusal(there, label(there.name), deed))
