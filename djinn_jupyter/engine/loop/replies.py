"""The needs of a request on its session, and what it changes, by the terms of its class."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from djinn_jupyter.engine.loop.mailbox import QueuedRequest
from djinn_jupyter.engine.loop.open_requests import OpenRequests
from djinn_jupyter.engine.loop.publisher import Accounting, StatePublisher
from djinn_jupyter.engine.session.session import MOST_BYTES, Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Closed, Failed, Reply


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


# Requests that come again: one that a session knows is answered as before and not done again. Knows no sockets.

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


# Replies go out when the state that they report is sound and in the journal; they say where the journal cannot take
# it. It is published next, and until then no thread reads the state published before. Knows requests and the journal,
# not how a verb does its work.

ReadyReplies = list[tuple[QueuedRequest, Reply]]


class Promises:
    def __init__(
        self,
        open_requests: OpenRequests,
        accounting: Accounting,
        state_publisher: StatePublisher,
        *,
        sessions: SessionTable,
        persistence: Persistence,
        faults: Faults,
    ) -> None:
        self._open, self._accounting = open_requests, accounting
        self._state_publisher, self._sessions = state_publisher, sessions
        self._persistence, self._faults = persistence, faults

    def send(self) -> bool:
        """Hand over the replies that are ready; the state that they report has to be published next. Return True where
        there were any. Raises EngineBroken, and ClaimLost."""
        self._accounting.require_sound()
        ready = self._open.take_answered()
        with self._faults.during("it wrote the journal"):
            ready = self._kept(ready)
        if ready:
            self._persistence.require_claim()  # after the writing: what is reported was kept while it was this engine's
            self._state_publisher.fall_behind()
        for queued, reply in ready:
            with self._faults.during("a reply was handed over"):
                queued.reply(reply)
        return bool(ready)

    def publish(self, idle: bool = False) -> None:
        """Publish the state that the replies reported, and what else is due; `idle` describes untouched sessions
        too."""
        with self._faults.during("it described its sessions"):
            self._state_publisher.heed_journal(self._persistence.trouble, self._persistence.unkept)
            if self._state_publisher.behind or self._state_publisher.due:
                self._state_publisher.publish(all_sessions=idle)

    def _kept(self, ready: ReadyReplies) -> ReadyReplies:
        """Write the sessions that the answered requests changed to the journal. Return the replies, marked `not_kept`
        where that failed."""
        for queued, reply in ready:
            note(queued, reply, self._sessions)
        self._persistence.write(self._sessions, [name for queued, _ in ready for name in kept_with(queued.request)])
        unkept = self._persistence.unkept
        return [(queued, self._noted(reply, queued.request, unkept)) for queued, reply in ready] if unkept else ready

    def _noted(self, reply: Reply, request: ask.Request, unkept: frozenset[str]) -> Reply:
        changed = changed_by(request)
        return replace(reply, not_kept=self._persistence.trouble) if unkept.intersection(changed) else reply
