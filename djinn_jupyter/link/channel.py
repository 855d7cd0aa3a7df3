"""The interface between the client's methods and the wire: requests from any thread, without asyncio.

It has two implementations: SocketChannel, over a Connection in the I/O thread, and DirectChannel
(tests/client/direct.py), without sockets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Literal, NoReturn, Protocol, TypeVar

from djinn_jupyter.errors import DjinnError, KeyRefused, UsageError, WireError
from djinn_jupyter.link import io_thread, waiting
from djinn_jupyter.link.naming import holder_name, notebook_path, user_name
from djinn_jupyter.link.transport import Heard, LossHeard, WireBytes
from djinn_jupyter.remote.addresses import note_attached
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, ReplyBase, Sessions, Welcome
from djinn_jupyter.wire.request_base import Answer as Answer
from djinn_jupyter.wire.request_base import RequestBase
from djinn_jupyter.wire.sessions import ListSessions, listed

Expected = TypeVar("Expected")
Item = TypeVar("Item")


class Channel(Protocol):
    """A client's path to one engine. `ask` returns at once; its future has the reply, or raises the error of Failed."""

    @property
    def welcome(self) -> Welcome: ...
    @property
    def holder(self) -> str: ...
    @property
    def wire_bytes(self) -> WireBytes: ...
    @property
    def unkept(self) -> Unkept: ...
    @property
    def is_afar(self) -> bool:
        """True for an engine behind a network connection, possibly on another machine with other paths."""

    @property
    def down_since(self) -> float | None:
        """The time at which the connection to the engine was lost, in seconds since the epoch; None while it is up."""

    def show_receiving(self, show: io_thread.Show) -> None:
        """Call this with the progress of a large reply or request, now and then, in the thread that waits for it."""

    def ask(self, request: RequestBase[Answer]) -> Future[Answer]: ...
    def listen(self, session: str, heard: Heard) -> Callable[[], None]: ...
    def watch_connection(self, heard: LossHeard) -> Callable[[], None]:
        """Call `heard`, in the thread that receives messages, when the connection to the engine has been down for a
        while and when it is back, until the returned function is called."""

    def follow(
        self, session: str, request: RequestBase[Answer], heard: Heard
    ) -> tuple[Future[Answer], Callable[[], None]]:
        """Send a request and listen to its session's events from the beginning. Return its reply, and a function to end
        it."""

    def take_back(self, reply: Future[Any]) -> bool:
        """Withdraw a large request that is still being sent; nothing of it is done. False where the engine has it."""

    def take(self, feed: SimpleQueue[Item], timeout: float | None) -> Item:
        """Take the next item that a reply or event puts into the queue. Raises queue.Empty after `timeout` seconds."""

    def close(self) -> None: ...


class Unkept:
    """The latest notice in a reply that the engine's journal could not keep some work; `read` clears it."""

    def __init__(self) -> None:
        self._said: str | None = None

    def record(self, reply: object) -> None:
        if isinstance(reply, ReplyBase) and reply.not_kept is not None:
            self._said = reply.not_kept

    def read(self) -> str | None:
        said, self._said = self._said, None
        return said


def ask_for(channel: Channel, request: RequestBase[Answer]) -> Answer:
    """Send a request, wait, and return the reply; WireError where it does not answer the request."""
    return channel.ask(request).result()


def sessions_of(answer: Callable[[ListSessions], Sessions]) -> tuple[SessionDescription, ...]:
    """Return all sessions, from the pages that `answer` returns."""
    pages = listed()
    try:
        request = next(pages)
        while True:
            request = pages.send(answer(request))
    except StopIteration as end:
        sessions: tuple[SessionDescription, ...] = end.value
        return sessions


def all_sessions(channel: Channel) -> tuple[SessionDescription, ...]:
    """Return all sessions of an engine."""
    return sessions_of(lambda request: channel.ask(request).result())


def expect(reply: object, kind: type[Expected]) -> Expected:
    """Return a reply of one kind, among the kinds that the request may get; WireError for another."""
    if not isinstance(reply, kind):
        raise WireError(f"The engine answered with {type(reply).__name__}.")
    return reply


class SocketChannel:
    """A Connection with a synchronous interface. `heard` callbacks run in the I/O thread and may not block."""

    def __init__(
        self, thread: io_thread.IoThread, entry: Entry, *, holder: str, user: str, notebook: str | None
    ) -> None:
        self._thread = thread
        self.holder = holder
        self.unkept = Unkept()
        self._refused = False
        opening = open_connection(entry, holder=holder, user=user, notebook=notebook)
        self._connection = Context().run(thread.wait, opening)  # it outlives the magic that reads it
        self._forget = note_attached(self._connection.entry)
        self._notice = io_thread.ConnectionNotice(self._connection)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "An engine, a session and what reads from it belong to one process, and are not copied or pickled: load "
            "the engine again there, or hand over the values."
        )

    @property
    def entry(self) -> Entry:
        return self._connection.entry

    @property
    def welcome(self) -> Welcome:
        return self._connection.welcome

    @property
    def wire_bytes(self) -> WireBytes:
        return self._connection.wire_bytes

    @property
    def usable(self) -> bool:
        """False where another channel is needed: this one is closed, or the engine has refused its key since."""
        return self._thread.usable and not self._connection.closed and not self._refused

    @property
    def is_afar(self) -> bool:
        return self.entry.is_afar

    @property
    def down_since(self) -> float | None:
        return self._connection.down_since

    def show_receiving(self, show: io_thread.Show) -> None:
        self._notice.show = show

    def ask(self, request: RequestBase[Answer]) -> Future[Answer]:
        future = self._awaited(request)
        self._thread.call(lambda: self._post(request, future))
        return future

    def follow(
        self, session: str, request: RequestBase[Answer], heard: Heard
    ) -> tuple[Future[Answer], Callable[[], None]]:
        future, forgets = self._awaited(request), list[Callable[[], None]]()

        def send() -> None:
            forgets.append(self._connection.hear(session, heard, lambda outcome: None))  # the request raises it
            self._post(request, future)

        def forget() -> None:
            forgets[0]()
            self._give_up(future)

        self._thread.call(send)
        return future, lambda: self._thread.call(forget)

    def _awaited(self, request: RequestBase[Answer]) -> io_thread.AwaitedReply[Answer]:
        def given_up() -> None:
            if type(request).terms.browser != "moves":  # the session is paused, and the reply is awaited once more
                self._thread.call(lambda: self._give_up(future))

        future = io_thread.AwaitedReply[Answer](self._notice.look, given_up)
        future.set_running_or_notify_cancel()  # a request that was sent cannot be taken back
        return future

    def _post(self, request: RequestBase[Answer], future: io_thread.AwaitedReply[Answer]) -> None:
        future.number = self._connection.post(request, lambda outcome: self._settle(future, outcome))

    def _give_up(self, future: io_thread.AwaitedReply[Any]) -> None:
        if future.number is not None and not future.done():
            self._connection.give_up(future.number)

    def take_back(self, reply: Future[Any]) -> bool:
        async def taken_back() -> bool:
            number = reply.number if isinstance(reply, io_thread.AwaitedReply) else None
            return number is not None and not reply.done() and self._connection.take_back(number)

        return self._thread.wait(taken_back())

    def _settle(self, future: Future[Answer], outcome: Answer | BaseException) -> None:
        self.unkept.record(outcome)
        self._refused |= isinstance(outcome, KeyRefused)
        io_thread.settle(future, outcome)

    def listen(self, session: str, heard: Heard) -> Callable[[], None]:
        forget = self._thread.wait(self._connection.listen(session, heard), self._notice.look)
        return lambda: self._thread.call(forget)

    def watch_connection(self, heard: LossHeard) -> Callable[[], None]:
        forgets = list[Callable[[], None]]()
        self._thread.call(lambda: forgets.append(self._connection.watch_connection(heard)))
        return lambda: self._thread.call(lambda: forgets[0]())

    def take(self, feed: SimpleQueue[Item], timeout: float | None) -> Item:
        while timeout is None:
            with suppress(Empty):
                return feed.get(timeout=io_thread.LOOK_SECONDS)
            self._notice.look()
            waiting.look()
        return feed.get(timeout=timeout)

    def close(self) -> None:
        """Close the connection, even if the wait is interrupted."""
        if self._thread.usable:  # else a forked child's, whose parent is attached
            self._forget()
            self._thread.wait(self._close())

    async def _close(self) -> None:
        await asyncio.shield(self._connection.close())


class Channels:
    """One I/O thread, one channel to each engine. A forked child starts without any. Lost channels are closed when the
    next one is requested: each has sockets and a thread of zmq."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: io_thread.IoThread | None = None
        self._channels: dict[object, SocketChannel] = {}

    def to(self, entry: Entry) -> SocketChannel:
        with self._lock:
            if self._thread is None or not self._thread.usable:
                self._thread, self._channels = io_thread.IoThread(), {}
            self._close_lost()
            key = _engine_of(entry)
            channel = self._channels.get(key)
            if channel is None:
                channel = SocketChannel(
                    self._thread, entry, holder=holder_name(), user=user_name(), notebook=notebook_path()
                )
                self._channels[key] = channel
            return channel

    def _close_lost(self) -> None:
        for key in [key for key, channel in self._channels.items() if not channel.usable]:
            self._channels.pop(key).close()

    def close(self) -> None:
        """Send Goodbye to every engine, so that sessions are detached at once and not after a timeout."""
        with self._lock:
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                try:
                    channel.close()
                except DjinnError:
                    pass  # the engine has gone already
            if self._thread is not None:
                self._thread.stop()
                self._thread = None


def _engine_of(entry: Entry) -> object:
    """Return the key that identifies an engine across entries: on this machine its process and start time, because a
    broken engine starts again; elsewhere its address and the key."""
    return (entry.commands, entry.key) if entry.is_afar else (entry.pid, entry.started)


# A request and the events of its session, in the caller's thread. Knows no kind of request or event. Replies and events
# share one socket: the events of a request arrive before its reply.

REPLIED: Final = "replied"
Feed = SimpleQueue[Event | Literal["replied"]]


class Following(Generic[Answer]):
    """A request that was sent. `reply` is its future."""

    def __init__(self, channel: Channel, feed: Feed, reply: Future[Answer]) -> None:
        self._channel, self._feed, self.reply = channel, feed, reply

    def events(self) -> Iterator[Event]:
        """Yield the session's events as they arrive, until the reply is there."""
        while (item := self._channel.take(self._feed, None)) != REPLIED:
            yield item


@contextmanager
def followed(channel: Channel, session: str, request: RequestBase[Answer]) -> Iterator[Following[Answer]]:
    """Send a request, and listen to its session's events from the beginning."""
    feed: Feed = SimpleQueue()
    reply, forget = channel.follow(session, request, feed.put)
    try:
        reply.add_done_callback(lambda _: feed.put(REPLIED))
        yield Following(channel, feed, reply)
    finally:
        forget()
