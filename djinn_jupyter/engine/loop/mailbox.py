"""Requests on their way: the queue from any thread to the engine's, and those whose replies have not gone out. Knows
neither sockets nor the meaning of a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.session.session import RequestId, Session
from djinn_jupyter.engine.system.faults import Counters
from djinn_jupyter.engine.system.log import LoggedRequest, present
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Request


class PendingTokens:
    """The tokens of one prompt, once made: a worker sets `outcome`, the engine's thread reads it. `withdrawn`: no
    request waits for them."""

    __slots__ = ("outcome", "withdrawn")

    def __init__(self) -> None:
        self.outcome: list[int] | DjinnError | None = None
        self.withdrawn = False

    def result(self) -> list[int]:
        assert self.outcome is not None
        if isinstance(self.outcome, DjinnError):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The sender of a request: a kernel or process (`name` survives its restart) of a user, and the notebook that it
    runs, which does not distinguish two of them. `person` has proved by a key to be its user."""

    name: str
    user: str
    person: str | None = field(default=None, compare=False)
    notebook: str | None = field(default=None, compare=False)


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedRequest:
    """A queued request with its sender and the callback for its reply. `reply` may be called from the engine's thread
    only, and once: then it is `answered`. `tokens` are those of a long prompt, which a worker makes meanwhile. A
    repeatable request is `known_as` the same each time. `logged_as` is its form in the log, where it came over the
    wire."""

    request: Request
    holder: Holder
    reply: Callable[[Reply], None]
    answered: bool = False
    tokens: PendingTokens | None = None
    known_as: RequestId | None = None
    logged_as: LoggedRequest | None = field(default_factory=present)

    @property
    def unread(self) -> bool:
        """True while its text is being tokenized."""
        return self.tokens is not None and self.tokens.outcome is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHolder:
    """Notice that a holder has gone: its sessions stay, detached."""

    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRead:
    """Notice that the prompt of a request queued for this session was tokenized, or refused."""

    session: str


Mail = QueuedRequest | LostHolder | Moved | TextRead


class Mailbox:
    """First in, first out. `waiting` is read between layers, so it costs one attribute look-up and no lock.

    The bell is a SimpleQueue because `wake` is called by a signal handler on the engine's own thread: its `put` is
    reentrant, where a threading.Event that the same thread was waiting on would deadlock on its own lock.
    """

    def __init__(self) -> None:
        self._mail: deque[Mail] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()

    @property
    def waiting(self) -> bool:
        return bool(self._mail)

    def post(self, mail: Mail) -> None:
        self._mail.append(mail)
        self._bell.put(None)

    def take_all(self) -> list[Mail]:
        """Take all mail there is now, oldest first."""
        return [self._mail.popleft() for _ in range(len(self._mail))]

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is mail or the timeout (seconds) has passed. Return True when there is mail."""
        if not self._mail:
            self._heard(timeout)
        while self._heard(0):
            pass
        return bool(self._mail)

    def wake(self) -> None:
        """End a `wait` without mail, so that the engine's thread sees that it has to stop."""
        self._bell.put(None)

    def _heard(self, timeout: float | None) -> bool:
        """Take one ring of the bell. Return False where none came within the timeout."""
        try:
            self._bell.get(timeout=timeout)
        except Empty:
            return False
        return True


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
        """Return the requests whose replies are to be sent now, in order."""
        answered, self._answered = self._answered, []
        return answered
