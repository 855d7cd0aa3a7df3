"""Requests queued until their session can be worked on, in the order in which they came."""

from __future__ import annotations

from collections import deque

from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.session.session import Session


class Waiting:
    """Keyed by session, not by name: a session that is being restored is not the one that it will replace."""

    def __init__(self) -> None:
        self._queues: dict[int, tuple[Session, deque[QueuedRequest]]] = {}

    def __contains__(self, session: object) -> bool:
        """True where a request is queued for the session."""
        return id(session) in self._queues

    def of(self, session: Session) -> tuple[QueuedRequest, ...]:
        return tuple(self._of(session))

    def first(self, session: Session) -> QueuedRequest:
        return self._of(session)[0]

    def add(self, session: Session, queued: QueuedRequest) -> None:
        self._of(session, keep=True).append(queued)

    def put_back(self, session: Session, queued: QueuedRequest) -> None:
        """Put the request back at the head of the queue."""
        self._of(session, keep=True).appendleft(queued)

    def take(self, session: Session) -> QueuedRequest:
        """Remove and return the first request."""
        queued = self.first(session)
        self.remove(session, queued)
        return queued

    def remove(self, session: Session, queued: QueuedRequest) -> None:
        """Remove the request if it is queued."""
        queue = self._of(session)
        if queued in queue:
            queue.remove(queued)
        if not queue:
            self._queues.pop(id(session), None)

    def _of(self, session: Session, *, keep: bool = False) -> deque[QueuedRequest]:
        _, queue = self._queues.get(id(session), (session, deque[QueuedRequest]()))
        if keep:
            self._queues[id(session)] = (session, queue)
        return queue
