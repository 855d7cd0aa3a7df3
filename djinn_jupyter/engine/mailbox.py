"""Letters from any thread to the engine's thread. Knows neither sockets nor what a request means."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from djinn_jupyter.engine.memory.mover import Moved
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who asks: a kernel or process (`name` survives its restart) of a user."""

    name: str
    user: str


@dataclass(slots=True, kw_only=True, eq=False)
class Letter:
    """A request with its asker and the one place its reply goes. `reply` may be called from the engine's thread
    only, and once: then it is `answered`."""

    request: Request
    holder: Holder
    reply: Callable[[Reply], None]
    answered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A holder has gone: its sessions stay, detached."""

    holder: Holder


Mail = Letter | Departure | Moved


class Mailbox:
    """First in, first out. `waiting` is read between layers, so it costs one attribute look-up and no lock.

    The bell is a SimpleQueue because `wake` is called by a signal handler on the engine's own thread: its `put` is
    reentrant, where the lock of a threading.Event that the same thread was waiting on would be taken twice, for ever.
    """

    def __init__(self) -> None:
        self._letters: deque[Mail] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()

    @property
    def waiting(self) -> bool:
        return bool(self._letters)

    def post(self, letter: Mail) -> None:
        self._letters.append(letter)
        self._bell.put(None)

    def take_all(self) -> list[Mail]:
        """What is there now, oldest first."""
        return [self._letters.popleft() for _ in range(len(self._letters))]

    def wait(self, timeout: float | None = None) -> bool:
        """Block until a letter is there or the timeout (seconds) has passed; True when one is."""
        if not self._letters:
            self._heard(timeout)
        while self._heard(0):
            pass
        return bool(self._letters)

    def wake(self) -> None:
        """End a `wait` without a letter, so that the engine's thread can see that it is to stop."""
        self._bell.put(None)

    def _heard(self, timeout: float | None) -> bool:
        """Whether the bell has rung within the timeout; takes one stroke of it."""
        try:
            self._bell.get(timeout=timeout)
        except Empty:
            return False
        return True
