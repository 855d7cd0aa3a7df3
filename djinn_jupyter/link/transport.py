"""One client's connection to one engine, on asyncio: send requests, match replies by number, notice the engine's death.
The kernel runs it in its I/O thread (channel.py), the server extension awaits it in its own loop. Over TCP a line that
is lost is replaced (`SocketLine`): the client says Hello again by its token, hears the events that it missed, and sends
what was not answered again, which the engine does once, also one that was started anew. Else a lost connection stays
lost."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import zmq

from djinn_jupyter.errors import DjinnError, EngineError, EngineUnavailable, WireError, from_code
from djinn_jupyter.files import first_change
from djinn_jupyter.link.registry import is_alive, require_own_sockets, require_this_protocol
from djinn_jupyter.remote.addresses import as_told
from djinn_jupyter.remote.handshake import Unmet, met
from djinn_jupyter.remote.large_messages import (
    TAKEN_BACK,
    Answer,
    AnsweredBy,
    Arrivals,
    Sent,
    Uploads,
    checked,
    goes_in_pieces,
    settle,
)
from djinn_jupyter.remote.line import Context, SocketLine
from djinn_jupyter.remote.road import Road, road_to
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.codec import WireFrame
from djinn_jupyter.wire.logs import Trace, next_request, reason_of_end
from djinn_jupyter.wire.pieces import InPieces, sizes_of
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, EventsMissed, Failed, Listening, Reply, Welcome
from djinn_jupyter.wire.requests import Goodbye, Hello, Listen, Ping, Request, RequestBase, Unlisten

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


# Listeners that show a loss of the connection to an engine. Called in the event loop.

DOWN_SECONDS: Final = 2.0  # a shorter loss is not reported
LineHeard = Callable[["float | None"], None]
"""Called with the moment at which the line was lost, in seconds since the epoch, and with None when it is back."""


class LineWatch:
    def __init__(self) -> None:
        self._watchers: list[LineHeard] = []
        self._waiting: asyncio.TimerHandle | None = None
        self._told: float | None = None

    def add(self, heard: LineHeard) -> None:
        self._watchers.append(heard)
        if self._told is not None:
            heard(self._told)

    def remove(self, heard: LineHeard) -> None:
        if heard in self._watchers:
            self._watchers.remove(heard)

    def lost(self, since: float) -> None:
        """Report that the connection is down if it is not back in DOWN_SECONDS."""
        self._waiting = asyncio.get_running_loop().call_later(DOWN_SECONDS, self._tell, since)

    def back(self) -> None:
        """Report that the connection is back, if its loss was reported."""
        self.close()
        if self._told is not None:
            self._tell(None)

    def close(self) -> None:
        """Report no loss any more."""
        if self._waiting is not None:
            self._waiting.cancel()

    def _tell(self, since: float | None) -> None:
        self._told = since
        for heard in tuple(self._watchers):
            heard(since)


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


def trace_of(request: Request) -> Trace | None:
    """Return the ids of a new request, called in the caller's context; None for a request of the connection itself."""
    return None if type(request).terms.unasked == "line" else next_request()


def naming(trace: Trace | None, answered: AnsweredBy[Answer]) -> AnsweredBy[Answer]:
    """Wrap a request's callback so that it notes the request's id on an error."""
    if trace is None:
        return answered
    shown = trace.shown

    def told(outcome: Answer | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            outcome.request = shown
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
        head, arrays = _sizes(frames)
        return replace(self, sent=self.sent + head + arrays, arrays_sent=self.arrays_sent + arrays)

    def with_received(self, frames: Sequence[WireFrame]) -> WireBytes:
        """Return these bytes plus those of a received message."""
        head, arrays = _sizes(frames)
        return replace(self, received=self.received + head + arrays, arrays_received=self.arrays_received + arrays)


def _sizes(frames: Sequence[WireFrame]) -> tuple[int, int]:
    """Return the bytes of a message's envelope and of its arrays."""
    head, *arrays = sizes_of(frames)
    return head, sum(arrays)


log = logging.getLogger(__name__)

PING_SECONDS = 3.0
SILENCE_SECONDS = 60.0  # for an engine whose process lives but does not answer Ping
AWAY_SECONDS = 600.0  # as long as the engine keeps the replies to a client that it does not hear (`KeptReplies`)
GREETING_SECONDS = 5.0  # until Hello is sent on another connection


class Connection:
    """A connection, bound to the event loop that opened it. `welcome` is the engine's reply to Hello. `down_since` is
    the moment of its loss, in seconds since the epoch, None while it is up; requests wait until it is back."""

    welcome: Welcome

    def __init__(self, entry: Entry, road: Road, hello: Hello) -> None:
        self.entry, self._road = entry, road
        self.wire_bytes = WireBytes()
        self.down_since: float | None = None
        self._hello, self._context = hello, Context()
        self._line = SocketLine(self._context, road.entry, self._take, patient=False)
        self._subscriptions, self.line_watch = Subscriptions(), LineWatch()
        self._pending: dict[int, Sent] = {}
        self.arrivals = Arrivals(self.post, self._arrived)
        self.uploads = Uploads(self.post, self._send, self._not_sent)
        self._number = self._latest_event = 0
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
    ) -> Connection:
        """Connect and send Hello. EngineUnavailable when no engine answers, VersionMismatch for another version."""
        require_this_protocol(entry)
        require_own_sockets(entry)
        road = road_to(entry)
        await road.open()
        token = secrets.token_urlsafe(24) if entry.is_afar else ""
        hello = protocol.hello(holder=holder, user=user, notebook=notebook, observer=observer, token=token)
        return await met(lambda: cls(entry, road, hello)._say_hello(timeout))

    async def _say_hello(self, timeout: float) -> Connection:
        """Send Hello, and return this connection when it is welcome. Raises Unmet where another attempt may succeed."""
        try:
            welcome = await asyncio.wait_for(self.ask(self._hello), timeout)
        except TimeoutError:
            await self.close()
            raise EngineUnavailable(f"{self._named} does not answer; {SEE_LOG}.") from None
        except EngineUnavailable as error:
            refused = EngineUnavailable(self._road.refusal) if self._road.refusal else self._line.handshake.refusal()
            await self.close()
            if refused is not None:
                raise refused from None
            raise Unmet(await self._line.handshake.breach(), error) from None
        except BaseException:
            await self.close()
            raise
        self.welcome = welcome
        self.entry = as_told(self.entry, welcome.model)
        self._latest_event = welcome.events
        return self

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
            frames = codec.encode_checked(number, request, trace := trace_of(request))
        except DjinnError as error:
            answered(error)
            return number
        in_pieces = self._outlives_lines and goes_in_pieces(request, frames)
        sent = self._pending[number] = Sent(frames, checked(request, naming(trace, answered)), in_pieces=in_pieces)
        if self.down_since is None:
            self._send_pending(number, sent)
        return number

    def give_up(self, number: int) -> None:
        """Withdraw a request that is being sent, or skip a large reply to it: no caller waits for it any more, and the
        connection is free for others."""
        if not self.take_back(number) and not self.arrivals.give_up(number) and number in self._pending:
            self._pending[number].given_up = True

    def take_back(self, number: int) -> bool:
        """Stop sending a large request; nothing of it is done. False where the engine has all of it."""
        taken_back = self.uploads.give_up(number)
        if taken_back:
            self._not_sent(number, EngineError(TAKEN_BACK))
        return taken_back

    def _not_sent(self, number: int, error: DjinnError) -> None:
        if (sent := self._pending.pop(number, None)) is not None:
            sent.answered(error)

    def _send_pending(self, number: int, sent: Sent) -> None:
        if sent.in_pieces:
            self.uploads.send(number, sent.frames)
        elif not self._send(sent.frames):
            self._not_sent(number, EngineUnavailable(f"{self._named} takes no requests; {SEE_LOG}."))

    def _send(self, frames: list[codec.WireFrame]) -> bool:
        """Send a message. Return False where the connection does not take it; do not reconnect or fail."""
        self.wire_bytes = self.wire_bytes.with_sent(frames)
        try:
            self._line.send(frames)
        except zmq.Again:  # an engine that refused the key has closed its end, which the handshake shows
            return bool(self._hello.token)
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

        def listening(outcome: Listening | DjinnError) -> None:
            if isinstance(outcome, Listening):
                self._latest_event = max(self._latest_event, outcome.events)
            answered(outcome)

        self.post(Listen(session=named), listening)
        return lambda: self._forget(named, heard)

    async def close(self) -> None:
        """Send Goodbye if the connection is up, and close."""
        if self._lost is None and self.down_since is None and hasattr(self, "welcome"):
            try:
                await asyncio.wait_for(self.ask(Goodbye()), 0.5)
            except (DjinnError, TimeoutError):
                pass
        self._lose("This connection has been closed; load the engine again.")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._line.close()
        self._road.close()
        self._context.term()

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
        self.line_watch.close()
        pending, self._pending = self._pending, {}
        for sent in pending.values():
            sent.answered(EngineUnavailable(self._lost))
        self.arrivals.lose(self._lost)

    def _take(self, received: list[zmq.Frame]) -> None:
        self._heard = asyncio.get_running_loop().time()
        frames: list[codec.WireFrame] = [frame.buffer for frame in received]
        self.wire_bytes = self.wire_bytes.with_received(frames)
        if codec.is_event(frames):
            self._hear(frames)
        else:
            self._answer(frames)

    def _hear(self, frames: list[codec.WireFrame]) -> None:
        try:
            envelope = codec.decode_event(frames)
        except WireError as error:
            log.warning("An event could not be read: %s", error)
            return
        self._latest_event = max(self._latest_event, envelope.id)
        self._subscriptions.hand_out(envelope.body)

    def _answer(self, frames: list[codec.WireFrame]) -> None:
        outcome: Reply | DjinnError
        try:
            envelope = codec.decode_reply(frames)
            number: int | None = envelope.id
            outcome = envelope.body
        except WireError as error:
            number, outcome = codec.read_number(frames), error
        sent = self._pending.pop(number, None) if number is not None else None
        if number is not None:
            self.uploads.answered(number)
        if sent is None or number is None:
            log.warning("A reply that no request waits for: %s", type(outcome).__name__)
            return
        if isinstance(outcome, InPieces):
            self.arrivals.begin(number, outcome, sent)
            return
        sent.answered(from_code(outcome.code, outcome.message) if isinstance(outcome, Failed) else outcome)

    def _arrived(self, number: int, sent: Sent, frames: list[codec.WireFrame]) -> None:
        """Answer a request whose reply came in pieces."""
        self._pending[number] = sent
        self._answer(frames)

    @property
    def _outlives_lines(self) -> bool:
        """True once the engine has welcomed a client with a token."""
        return bool(self._hello.token) and hasattr(self, "welcome")

    async def _watch(self) -> None:
        """Wait until the connection is lost, and replace it where that is possible."""
        await self._line.handshake.over.wait()
        while self._outlives_lines and self._lost is None:
            await self._come_back()
            await self._line.handshake.over.wait()
        if self._lost is None and self.entry.is_afar:
            self._lose(f"{self._named} closed the connection; load it again.")
        elif self._lost is None:
            self._lose(await sentence_of_end(self.entry))

    async def _come_back(self) -> None:
        """Send Hello on new connections until one is answered, then send all unanswered requests; without one it is
        lost."""
        self.down_since = time.time()
        self.line_watch.lost(self.down_since)
        log.info("The line to %s is down", self.entry.commands)
        try:
            async with asyncio.timeout(AWAY_SECONDS):
                while not await self._greeted_again():
                    await asyncio.sleep(self._road.again_seconds)
        except TimeoutError:
            self._lose(f"{self._named} could not be reached for {AWAY_SECONDS / 60:.0f} minutes; load it again.")
        except DjinnError as error:
            self._lose(str(error))
        else:
            self._go_on()

    async def _greeted_again(self) -> bool:
        """Send Hello on a new connection; False without an answer. EngineUnavailable if none can come."""
        if not is_alive(self.entry):
            raise EngineUnavailable(ended_sentence(self.entry))
        self._line.close()
        try:
            await self._road.mend()
            self._line = SocketLine(self._context, self._road.entry, self._take, patient=True)
        except (OSError, zmq.ZMQError, EngineUnavailable) as error:  # perhaps for want of descriptors, or of a login
            log.info("No line to %s can be opened: %s", self.entry.commands, error)
            return False
        answer, number = self._greet()
        lost = asyncio.ensure_future(self._line.handshake.over.wait())
        try:
            await asyncio.wait((answer, lost), timeout=GREETING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        self._pending.pop(number, None)
        if self._line.handshake.refused:
            raise self._line.handshake.refusal() or EngineUnavailable(f"{self._named} closed the connection.")
        if not answer.done() and self._road.refusal:
            raise EngineUnavailable(self._road.refusal)
        if not answer.done():
            return False
        self._meet(answer.result())
        return True

    def _greet(self) -> tuple[asyncio.Future[Welcome | DjinnError], int]:
        self._number += 1
        answer: asyncio.Future[Welcome | DjinnError] = asyncio.get_running_loop().create_future()
        hello = msgspec.structs.replace(self._hello, heard=self._latest_event, engine=self.welcome.engine)
        self._pending[self._number] = Sent([], checked(hello, answer.set_result))
        self._send(codec.encode_checked(self._number, hello))
        return answer, self._number

    def _meet(self, welcome: Welcome | DjinnError) -> None:
        """Continue with the engine that answered Hello, or with its successor, which has its sessions."""
        if isinstance(welcome, DjinnError):
            raise welcome
        earlier, self.welcome = self.welcome, welcome
        if welcome.engine == earlier.engine:
            return
        if (welcome.model.name, welcome.model.revision) != (earlier.model.name, earlier.model.revision):
            raise EngineUnavailable(f"{self._named} serves {welcome.model.name} now; load the model again.")
        if welcome.anew is not None:
            log.warning("%s was started anew, and its sessions came back: %s", self._named, welcome.anew)
        self._latest_event = welcome.events
        unanswered, self._pending = self._pending, {}
        for session in self._subscriptions.sessions:
            self.post(Listen(session=session), lambda outcome: None)
        self.uploads.begin_anew()
        self._pending |= self.arrivals.asked_again() | unanswered  # sent after these, and received from the beginning
        self._subscriptions.hand_out(EventsMissed(session=""))

    def _go_on(self) -> None:
        self.entry = self._road.reached(self.entry)
        log.info("The line to %s is back", self.entry.commands)
        self.down_since, self._heard = None, asyncio.get_running_loop().time()
        self.arrivals.line_is_back()
        self.uploads.line_is_back()
        self.line_watch.back()
        for number, sent in tuple(self._pending.items()):
            self._send_pending(number, sent)

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
        asked = time.monotonic()
        ping = Ping(answered=min(self._pending, default=self._number + 1) - 1)
        self.post(ping, lambda outcome: self._note_round_trip(time.monotonic() - asked))

    def _note_round_trip(self, seconds: float) -> None:
        for rate in (self.arrivals.rate, self.uploads.rate):
            rate.note_round_trip(seconds)
