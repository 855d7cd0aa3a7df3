"""Replies go out when the state that they report is sound and in the journal; they say where the journal cannot take
it. It is published next, and until then no thread reads the state published before.

Knows requests and the journal, not how a verb does its work.
"""

from __future__ import annotations

from msgspec.structs import replace

from djinn_jupyter.engine.accounting import Accounting
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests import repeats
from djinn_jupyter.engine.requests.needs import changed_by, kept_with
from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.scheduling.open_requests import OpenRequests
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.state_publisher import StatePublisher
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Reply

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
            repeats.note(queued, reply, self._sessions)
        self._persistence.write(self._sessions, [name for queued, _ in ready for name in kept_with(queued.request)])
        unkept = self._persistence.unkept
        return [(queued, self._noted(reply, queued.request, unkept)) for queued, reply in ready] if unkept else ready

    def _noted(self, reply: Reply, request: ask.Request, unkept: frozenset[str]) -> Reply:
        changed = changed_by(request)
        return replace(reply, not_kept=self._persistence.trouble) if unkept.intersection(changed) else reply
