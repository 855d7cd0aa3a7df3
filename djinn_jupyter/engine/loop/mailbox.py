"""The queue of requests and notices from any thread to the engine's. Knows neither sockets nor the meaning of a
request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from djinn_jupyter.engine.loop.tokenizing import PendingTokens
from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.engine.system.log import LoggedRequest, present
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The sender of a request: a kernel or process (`name` survives its restart) of a user, and the notebook that it
    runs, by which two are not told apart. `person` is who has proved by a key to be behind it."""

    name: str
    user: str
    person: str | None = field(default=None, compare=False)
    notebook: str | None = field(default=None, compare=False)


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedRequest:
    """A queued request with its sender and the callback for its reply. `reply` may be called from the engine's thread
    only, and once: then it is `answered`. `tokens` are those of a long prompt, which a worker makes meanwhile. One that
    may come again is `known_as` the same then. The log knows it as `logged_as`, where it came over the wire."""

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
class Departure:
    """Notice that a holder has gone: its sessions stay, detached."""

    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRead:
    """Notice that the prompt of a request queued for this session was tokenized, or refused."""

    session: str


Mail = QueuedRequest | Departure | Moved | TextRead


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
        """End a `wait` without mail, so that the engine's thread sees that it is to stop."""
        self._bell.put(None)

    def _heard(self, timeout: float | None) -> bool:
        """Take one stroke of the bell. Return False where none came within the timeout."""
        try:
            self._bell.get(timeout=timeout)
        except Empty:
            return False
        return True
