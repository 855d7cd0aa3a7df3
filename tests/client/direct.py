"""A channel without sockets: the double for tests, and for an engine in the same process.

channel = DirectChannel(welcome, send)            send(request, answer) calls answer(reply) once, now or later
channel = DirectChannel(welcome, send, pump)      the waiting thread calls pump() until the answer is there
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from djinn_jupyter.errors import DjinnError, from_code
from djinn_jupyter.link.channel import Unkept
from djinn_jupyter.link.io_thread import Show, settle
from djinn_jupyter.link.transport import Answered, Heard, LossHeard, WireBytes, checked
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.replies import Event, Failed, Reply, Welcome
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.requests import Request, RequestBase

Item = TypeVar("Item")
Send = Callable[[Request, Callable[[Reply], None]], None]


class _Pumped(Future[Answer]):
    """A future whose `result` calls `pump` until the future is done."""

    def __init__(self, pump: Callable[[], object]) -> None:
        super().__init__()
        self._pump = pump

    def result(self, timeout: float | None = None) -> Answer:
        while not self.done():
            self._pump()
        return super().result(timeout)


class DirectChannel:
    """A Channel that calls `send` directly. Every message goes through the codec, so a message that cannot cross the
    wire fails here too."""

    def __init__(
        self, welcome: Welcome, send: Send, pump: Callable[[], object] | None = None, *, holder: str = "direct"
    ) -> None:
        self.welcome, self.holder = welcome, holder
        self.is_afar = False
        self.down_since: float | None = None
        self.wire_bytes, self.unkept = WireBytes(), Unkept()
        self.requests: list[Request] = []
        self._send, self._pump = send, pump
        self._listeners: list[tuple[str, Heard]] = []
        self.line_watchers: list[LossHeard] = []

    def ask(self, request: RequestBase[Answer]) -> Future[Answer]:
        future: Future[Answer] = _Pumped(self._pump) if self._pump is not None else Future()
        try:
            sent = codec.decode_request(codec.encode_checked(len(self.requests), request)).body
        except DjinnError as error:
            settle(future, error)
            return future
        self.requests.append(sent)
        answered = checked(request, lambda outcome: settle(future, outcome))
        self._send(sent, lambda reply: self._answer(answered, reply))
        return future

    def show_receiving(self, show: Show) -> None: ...

    def take_back(self, reply: Future[Any]) -> bool:
        return False

    def watch_connection(self, heard: LossHeard) -> Callable[[], None]:
        self.line_watchers.append(heard)
        return lambda: self.line_watchers.remove(heard)

    def publish(self, event: Event) -> None:
        """Hand an event of the engine to the listeners of its session and of all sessions."""
        for session, heard in tuple(self._listeners):
            if session in ("", event.session):
                heard(event)

    def listen(self, session: str, heard: Heard) -> Callable[[], None]:
        listener = (session, heard)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def follow(
        self, session: str, request: RequestBase[Answer], heard: Heard
    ) -> tuple[Future[Answer], Callable[[], None]]:
        forget = self.listen(session, heard)
        return self.ask(request), forget

    def take(self, feed: SimpleQueue[Item], timeout: float | None) -> Item:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._pump is not None and feed.empty() and (deadline is None or time.monotonic() < deadline):
            self._pump()
        return feed.get(timeout=timeout if self._pump is None else 0)

    def close(self) -> None:
        self._listeners.clear()

    def _answer(self, answered: Answered, reply: Reply) -> None:
        received = codec.decode_reply(codec.encode(0, reply)).body
        self.unkept.record(received)
        answered(from_code(received.code, received.message) if isinstance(received, Failed) else received)
