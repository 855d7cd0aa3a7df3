"""Requests that come again: one that a session knows is answered as before and not done again. Knows no sockets."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.engine.requests.needs import kept_with
from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.session.answered import MOST_BYTES
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Closed, Failed, Reply

BROKEN_OFF: Final = Failed(
    code="EngineUnavailable",
    message="The engine ended while this was under way, and the next one does not do it again: the session stands as "
    "far as it came. Look at it, and go on from there.",
)
"""The reply to a request whose work an earlier engine began."""
NOT_KEPT: Final = Failed(
    code="EngineUnavailable",
    message="An earlier engine did this, but its reply is not kept any more: look at the session before you go on.",
)


def reply_to(queued: QueuedRequest, sessions: SessionTable) -> Reply | None:
    """Return the reply to a request that came before; None for one that is to be done. A session that is to be closed
    once more and is not there is closed."""
    names = kept_with(queued.request)
    if queued.known_as is None or not names:
        return None
    session = sessions.get(names[-1])  # of a fork the one that it makes: without it nothing is done
    if session is None:
        closed = queued.known_as.again and isinstance(queued.request, ask.Close)
        return Closed(pages_freed=0) if closed else None
    found = session.answered.find(queued.known_as)
    if found is None:
        return None
    if not found.done:
        return BROKEN_OFF
    return NOT_KEPT if found.reply is None else codec.decode_reply([found.reply]).body


def begin(queued: QueuedRequest, session: Session) -> None:
    """Note that work on a session begins, of which the journal may have a part before its reply."""
    if queued.known_as is not None and type(queued.request).terms.changes:
        session.answered.begin(queued.known_as)


def note(queued: QueuedRequest, reply: Reply, sessions: SessionTable) -> None:
    """Keep the reply with the sessions that the request changed. One that was refused did nothing."""
    if queued.known_as is None:
        return
    for name in kept_with(queued.request):
        session = sessions.get(name)
        if session is None or (isinstance(reply, Failed) and session.answered.find(queued.known_as) is None):
            continue
        session.answered.conclude(queued.known_as, _kept(reply))
        sessions.changed(name)


def _kept(reply: Reply) -> bytes | None:
    head, *arrays = codec.encode_reply(0, reply)
    return bytes(head) if not arrays and len(head) <= MOST_BYTES else None
