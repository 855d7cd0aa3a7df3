"""The requests whose replies have not gone out: queued until their session can be worked on, or answered."""

from __future__ import annotations

from collections import deque

from djinn_jupyter.engine.loop.mailbox import QueuedRequest
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.faults import Counters
from djinn_jupyter.wire.replies import Reply


class OpenRequests:
    """The queues are keyed by session, not by name: a session that is being restored is not the one that it will
    replace. Replies are held until the journal and the published state have the state that they report."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._queues: dict[int, tuple[Session, deque[QueuedRequest]]] = {}
        self._answered: list[tuple[QueuedRequest, Reply]] = []

    def __contains__(self, session: object) -> bool:
        """True where a request is queued for the session."""
        return id(session) in self._queues

    def of(self, session: Session) -> tuple[QueuedRequest, ...]:
        """Return the requests queued for the session, in the order in which they came."""
        return tuple(self._queues[id(session)][1]) if session in self else ()

    def first(self, session: Session) -> QueuedRequest:
        return self._queues[id(session)][1][0]

    def add(self, session: Session, queued: QueuedRequest) -> None:
        self._queue_of(session).append(queued)

    def put_back(self, session: Session, queued: QueuedRequest) -> None:
        """Put the request back at the head of the queue."""
        self._queue_of(session).appendleft(queued)

    def take(self, session: Session) -> QueuedRequest:
        """Remove and return the first request."""
        queued = self.first(session)
        self.remove(session, queued)
        return queued

    def remove(self, session: Session, queued: QueuedRequest) -> None:
        """Remove the request if it is queued."""
        if queued in self.of(session):
            queue = self._queue_of(session)
            queue.remove(queued)
            if not queue:
                del self._queues[id(session)]

    def _queue_of(self, session: Session) -> deque[QueuedRequest]:
        return self._queues.setdefault(id(session), (session, deque()))[1]

    def answer(self, queued: QueuedRequest, reply: Reply) -> None:
        queued.answered = True
        self._counters.count_answer()
        self._answered.append((queued, reply))

    def answer_all(self, session: Session, reply: Reply) -> None:
        """Give this reply to all requests queued for the session."""
        while session in self:
            self.answer(self.take(session), reply)

    def take_answered(self) -> list[tuple[QueuedRequest, Reply]]:
        """Return the requests whose replies are to go out now, in order."""
        answered, self._answered = self._answered, []
        return answered
