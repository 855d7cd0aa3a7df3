"""The fields of every request."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.limits import NotebookPath, OwnName
from djinn_jupyter.wire.nouns import StopIdentity


class RequestBase(Frozen, tag_field="request"):
    """An order to the engine."""


class SessionRequest(RequestBase):
    """An order that concerns one session."""

    session: OwnName


class OwnerRequest(SessionRequest, kw_only=True):
    """An order that may end a session, or what it holds: on a session of another notebook only with `force`. A server
    names the kernel and the notebook that it asks for; other clients have named theirs in Hello."""

    force: bool = False
    for_holder: OwnName | None = None
    for_notebook: NotebookPath | None = None


class StopRequest(SessionRequest, kw_only=True):
    """An order for the stop that its asker sees. Refused where the session stands elsewhere by then, or at another
    edition of it; None is for whatever stop there is."""

    stop: StopIdentity | None = None
