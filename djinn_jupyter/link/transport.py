"""One client's connection to one engine, on asyncio: send requests, match replies by number, notice the engine's death.
The kernel runs it in its I/O thread (channel.py), the server extension awaits it in its own loop. A connection over a
private folder that is lost stays lost; `remote/connection.py` has the one over a network."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from djinn_jupyter.errors import DjinnError, EngineUnavailable, WireError, from_code
from djinn_jupyter.files import first_change
from djinn_jupyter.link.io_thread import SoFar, Take, ZmqStream, settle
from djinn_jupyter.link.registry import is_alive, require_own_sockets, require_this_protocol
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.codec import WireFrame
from djinn_jupyter.wire.logs import Trace, next_request, reason_of_end
from djinn_jupyter.wire.pieces import sizes_of
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, EventsMissed, Failed, Listening, Reply, ReplyBase, Welcome
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.requests import Goodbye, Hello, Listen, Ping, RequestBase, Unlisten

SEE_LOG: Final = "see its log with `%djinn_log` or `djinn log`"
DEATH_SECONDS = 2.0  # a killed process closes its sockets a little before it is gone


async def sentence_of_end(entry: Entry) -> str:
    """Return whether the engine's process has ended or closed the connection, once that is known."""
    deadline = asyncio.get_running_loop().time() + DEATH_SECONDS
    while is_alive(entry):
        if asyncio.get_running_loop().time() > deadline:
            return f"{entry.named} closed the connection; {SEE_LOG}, and load it again."
        await asyncio.sleep(0.01)
    return ended_sentence(entry)


def ended_sentence(entry: Entry) -> str:
    """Return the sentence for a client of an ended engine, with the reason where its files or its log have one."""
    changed = None if entry.is_afar else first_change(entry.files)
    why = f" ({changed})" if changed is not None and "cut short" in changed else ""
    reason = reason_of_end(Path(entry.log), entry.pid) if entry.log and not entry.is_afar else None
    return (
        f"{entry.named} has ended{why}; the next load starts a new one, and the sessions it has kept come back with "
        f"it; {SEE_LOG}.{f' The reason: {reason}' if reason else ''}"
    )


LossHeard = Callable[["float | None"], None]
"""Called with the moment at which the connection was lost, in seconds since the epoch, and with None when it is
back."""
Heard = Callable[[Event], None]


class Subscriptions:
    """The listeners by session; None stands for all sessions. EventsMissed goes to every listener."""

    def __init__(self) -> None:
        self._listeners: dict[str | None, list[Heard]] = {}

    def add(self, session: str | None, heard: Heard) -> None:
        self._listeners.setdefault(session, []).append(heard)

    def remove(self, session: str | None, heard: Heard) -> bool:
        """Remove a listener, if present. Return True where it was the last one of its session."""
        listeners = self._listeners.get(session, [])
        if heard in listeners:
            listeners.remove(heard)
        return not listeners and self._listeners.pop(session, None) is not None

    @property
    def sessions(self) -> tuple[str | None, ...]:
        return tuple(self._listeners)

    def hand_out(self, event: Event) -> None:
        for heard in self._hearing(event):
            heard(event)

    def _hearing(self, event: Event) -> tuple[Heard, ...]:
        if isinstance(event, EventsMissed):
            return tuple(heard for listeners in self._listeners.values() for heard in listeners)
        return (*self._listeners.get(event.session, ()), *self._listeners.get(None, ()))


Answered = Callable[[ReplyBase | DjinnError], None]
AnsweredBy = Callable[[Answer | DjinnError], None]


def checked(request: RequestBase[Answer], answered: AnsweredBy[Answer], trace: Trace | None = None) -> Answered:
    """Return the callback of a request for any outcome: a reply that does not answer it is a WireError, and an error
    has the id of the request."""

    def told(outcome: ReplyBase | DjinnError) -> None:
        if not isinstance(outcome, DjinnError) and not request.is_answered_by(outcome):
            outcome = WireError(f"The engine answered {type(request).__name__} with {type(outcome).__name__}.")
        if isinstance(outcome, DjinnError):
            outcome.request = trace.shown if trace is not None else outcome.request
        answered(outcome)

    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """The totals include arrays."""

    sent: int = 0
    received: int = 0
    arrays_sent: int = 0
    arrays_received: int = 0

    def with_sent(self, frames: Sequence[WireFrame]) -> WireBytes:
        """Return these bytes plus those of a sent message."""
        head, *arrays = sizes_of(frames)
        return replace(self, sent=self.sent + head + sum(arrays), arrays_sent=self.arrays_sent + sum(arrays))

    def with_received(self, frames: Sequence[WireFrame]) -> WireBytes:
        """Return these bytes plus those of a received message."""
        received = WireBytes().with_sent(frames)
        return replace(
            self,
            received=self.received + received.sent,
            arrays_received=self.arrays_received + received.arrays_sent,
        )


log = logging.getLogger(__name__)

PING_SECONDS = 3.0
SILENCE_SECONDS = 60.0  # for an engine whose process lives but does not answer Ping
NEVER_MILLISECONDS: Final = 24 * 3600 * 1000
"""zmq does not connect again once a connection was lost; -1 would drop messages received but not yet read then."""
WATCHED: Final = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A context terminated only by its connection. If that was not closed, zmq's own finalizer would make the garbage
    collector wait for sockets that the same collection closes later."""

    def __del__(self) -> None:
        pass


class EngineSocket:
    """A socket from its connecting until `over`, when it is closed or refused. `take` gets the frames of each
    message."""

    def __init__(self, context: Context, endpoint: str, take: Take) -> None:
        self.over = asyncio.Event()
        self._socket = context.socket(zmq.DEALER)
        try:
            self._prepare(self._socket)
            monitor = self._socket.get_monitor_socket(WATCHED)  # first: zmq drops events without a listener
            self._socket.connect(endpoint)
        except BaseException:
            self._socket.disable_monitor()
            self._socket.close()  # else its context would wait for it for ever
            raise
        self._stream, self._monitor = ZmqStream(self._socket, take), ZmqStream(monitor, self._watch)

    def send(self, frames: Sequence[WireFrame]) -> None:
        """Raises zmq.Again where the engine has refused the keys and closed its end."""
        self._stream.send(frames)

    def close(self) -> None:
        """Close the socket; `take` is not called again. A second call does nothing."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()  # first: zmq would block for ever on a monitor socket that is no longer read
        self._monitor.close()
        self._stream.close()

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTING_ID, b"djinn" + secrets.token_bytes(16))  # the engine's drawn ids can be guessed
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MILLISECONDS)

    def _watch(self, frames: list[zmq.Frame]) -> None:
        self._note(parse_monitor_message([frame.bytes for frame in frames])["event"])

    def _note(self, event: int) -> None:
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.over.set()


@dataclass(frozen=True, slots=True)
class Sent:
    """A request without its reply, and its frames."""

    frames: list[WireFrame]
    answered: Answered


class Connection:
    """A connection over a private folder, bound to the event loop that opened it. `welcome` is the engine's reply to
    Hello. `down_since` is the moment of its loss, in seconds since the epoch, where it may come back, else None."""

    welcome: Welcome
    down_since: float | None = None
    latest: SoFar | None = None  # of the large message that ended last

    def __init__(self, entry: Entry, hello: Hello) -> None:
        self.entry, self._hello = entry, hello
        self.wire_bytes, self._subscriptions = WireBytes(), Subscriptions()
        self._context = Context()
        self._socket = self._connected()
        self._pending: dict[int, Sent] = {}
        self._number = 0
        self._lost: str | None = None
        self._heard = asyncio.get_running_loop().time()
        self._gone = asyncio.Event()
        self._tasks = [asyncio.ensure_future(task()) for task in (self._watch, self._keep_alive)]

    @classmethod
    async def open(
        cls,
        entry: Entry,
        *,
        holder: str,
        user: str,
        notebook: str | None = None,
        observer: bool = False,
        timeout: float = 60.0,
    ) -> Self:
        """Connect and send Hello. EngineUnavailable when no engine answers, VersionMismatch for another version."""
        require_this_protocol(entry)
        require_own_sockets(entry)
        hello = protocol.hello(holder=holder, user=user, notebook=notebook, observer=observer)
        return await cls._opened(entry, hello, timeout)

    @classmethod
    async def _opened(cls, entry: Entry, hello: Hello, timeout: float) -> Self:
        return await cls(entry, hello)._say_hello(timeout)

    async def _say_hello(self, timeout: float) -> Self:
        """Send Hello, and return this connection when it is welcome."""
        try:
            self.welcome = await asyncio.wait_for(self._greeted(), timeout)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(f"{self._named} does not answer; {SEE_LOG}.") from None
            raise
        return self

    async def _greeted(self) -> Welcome:
        return await self.ask(self._hello)

    @property
    def closed(self) -> bool:
        return self._lost is not None

    async def ended(self) -> str:
        """Wait until the connection is lost or closed; return the reason as a sentence."""
        await self._gone.wait()
        assert self._lost is not None
        return self._lost

    async def ask(self, request: RequestBase[Answer]) -> Answer:
        """Send a request and return the reply; raise the error of a Failed reply."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.post(request, partial(settle, answer))
        return await answer

    def post(self, request: RequestBase[Answer], answered: AnsweredBy[Answer]) -> int:
        """Send a request; `answered` is called exactly once, in the loop, with the reply or the error to raise. Return
        the request's number."""
        number = self._number = self._number + 1
        if self._lost is not None:
            answered(EngineUnavailable(self._lost))
            return number
        try:
            if not isinstance(request, Hello):
                protocol.require_method(type(request), dict(self.welcome.methods), self._named)
            trace = None if type(request).terms.unasked == "line" else next_request()  # in the caller's context
            frames = codec.encode_checked(number, request, trace)
        except DjinnError as error:
            answered(error)
            return number
        self._pending[number] = Sent(frames, checked(request, answered, trace))
        self._begin(number, request, frames)
        return number

    def _begin(self, number: int, request: RequestBase[Any], frames: list[WireFrame]) -> None:
        """Send a pending request."""
        if not self._send(frames):
            self._settle(number, EngineUnavailable(f"{self._named} takes no requests; {SEE_LOG}."))

    def give_up(self, number: int) -> None:
        """Take a request back that is being sent, or skip a large reply to it: no caller waits for it any more, and the
        connection is free for others."""

    def take_back(self, number: int) -> bool:
        """Stop sending a large request; nothing of it is done. False where the engine has all of it."""
        return False

    def watch_connection(self, heard: LossHeard) -> Callable[[], None]:
        """Call `heard` with the moment at which the connection was lost, and with None when it is back, until the
        returned function is called."""
        return lambda: None

    @property
    def progress(self) -> SoFar | None:
        """The part of the oldest large message that has crossed; read from any thread."""
        return None

    def _send(self, frames: list[WireFrame]) -> bool:
        """Send a message. Return False where the connection does not take it; do not reconnect or fail."""
        self.wire_bytes = self.wire_bytes.with_sent(frames)
        try:
            self._socket.send(frames)
        except zmq.Again:
            return False
        return True

    async def listen(self, session: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` in the loop for each event of a session ("" for all sessions), from the return of this call
        until the returned function is called."""
        listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        forget = self.hear(session, heard, partial(settle, listening))
        try:
            await listening
        except BaseException:
            forget()
            raise
        return forget

    def hear(self, session: str, heard: Heard, answered: AnsweredBy[Listening]) -> Callable[[], None]:
        """Call `heard` likewise, without waiting: events of requests sent after this call arrive from their beginning.
        `answered` is called as by `post`."""
        named = session or None
        self._subscriptions.add(named, heard)
        self.post(Listen(session=named), answered)
        return lambda: self._forget(named, heard)

    async def close(self) -> None:
        """Send Goodbye if the connection is up, and close."""
        if self._lost is None and self.down_since is None and hasattr(self, "welcome"):
            with suppress(DjinnError, TimeoutError):
                await asyncio.wait_for(self.ask(Goodbye()), 0.5)
        self._lose("This connection has been closed; load the engine again.")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()

    def _connected(self) -> EngineSocket:
        return EngineSocket(self._context, self.entry.commands, self._take)

    def _forget(self, session: str | None, heard: Heard) -> None:
        if self._subscriptions.remove(session, heard):
            self.post(Unlisten(session=session), lambda outcome: None)

    @property
    def _named(self) -> str:
        return self.entry.named

    def _lose(self, sentence: str) -> None:
        if self._lost is None:
            self._lost = sentence
            self._gone.set()
        pending, self._pending = self._pending, {}
        for sent in pending.values():
            sent.answered(EngineUnavailable(self._lost))

    def _take(self, received: list[zmq.Frame]) -> None:
        self._heard = asyncio.get_running_loop().time()
        frames: list[WireFrame] = [frame.buffer for frame in received]
        self.wire_bytes = self.wire_bytes.with_received(frames)
        if not codec.is_event(frames):
            return self._answer(frames)
        try:
            event = codec.decode_event(frames)
        except WireError as error:
            log.warning("An event could not be read: %s", error)
        else:
            self._hear(event)

    def _hear(self, event: codec.Envelope[Event]) -> None:
        self._subscriptions.hand_out(event.body)

    def _answer(self, frames: list[WireFrame]) -> None:
        try:
            envelope = codec.decode_reply(frames)
        except WireError as error:
            self._settle(codec.read_number(frames), error)
        else:
            self._settle(envelope.id, envelope.body)

    def _settle(self, number: int | None, outcome: Reply | DjinnError) -> None:
        """Answer a request with its reply, or with an error."""
        sent = self._pending.pop(number, None) if number is not None else None
        if sent is None:
            log.warning("A reply that no request waits for: %s", type(outcome).__name__)
        else:
            sent.answered(from_code(outcome.code, outcome.message) if isinstance(outcome, Failed) else outcome)

    async def _watch(self) -> None:
        """Wait until the connection is lost."""
        await self._socket.over.wait()
        if self._lost is None:
            self._lose(await sentence_of_end(self.entry))

    async def _keep_alive(self) -> None:
        """Ping the engine every PING_SECONDS; give the connection up after SILENCE_SECONDS without a message."""
        loop = asyncio.get_running_loop()
        while self._lost is None:
            await asyncio.sleep(PING_SECONDS)
            if self.down_since is not None:
                continue
            if loop.time() - self._heard > SILENCE_SECONDS:
                self._lose(f"{self._named} has said nothing for {SILENCE_SECONDS:.0f} s; {SEE_LOG}.")
                return
            self._ping()

    def _ping(self) -> None:
        self.post(Ping(), lambda outcome: None)
