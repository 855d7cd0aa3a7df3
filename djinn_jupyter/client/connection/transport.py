"""One client's connection to one engine, on asyncio: send requests, match replies by number, notice the engine's death.

The kernel runs it in its I/O thread (channel.py), the server extension awaits it in its own loop. A lost connection
stays lost: the client loads the engine again. Knows no sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from djinn_jupyter.client.connection.handshake import WATCHED, Handshake, require_reachable, set_keys
from djinn_jupyter.client.connection.subscriptions import Heard, Subscriptions
from djinn_jupyter.client.connection.zmq_stream import ZmqStream
from djinn_jupyter.client.engines.afar import as_told
from djinn_jupyter.client.engines.registry import is_alive, require_own_sockets
from djinn_jupyter.client.engines.versions import require_this_protocol
from djinn_jupyter.errors import DjinnError, EngineUnavailable, WireError, from_code
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Failed, Reply, Welcome
from djinn_jupyter.wire.requests import Goodbye, Listen, Ping, Request, Unlisten

log = logging.getLogger(__name__)

PING_SECONDS = 3.0
SEE_LOG = "see its log with `%djinn_log` or `djinn log`"
SILENCE_SECONDS = 60.0  # for an engine whose process lives but does not answer Ping
NEVER_MILLISECONDS = 24 * 3600 * 1000  # -1 would drop messages received but not yet read when the engine goes
DEATH_SECONDS = 2.0  # a killed process closes its sockets a little before it is gone
Answered = Callable[["Reply | DjinnError"], None]


class _Context(zmq.Context[zmq.Socket[bytes]]):
    """A context terminated only by its connection. If that was not closed, zmq's own finalizer would make the garbage
    collector wait for sockets that the same collection closes later."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """The bytes that have crossed the wire; the totals include arrays."""

    sent: int = 0
    received: int = 0
    arrays_sent: int = 0
    arrays_received: int = 0


class Connection:
    """A connection, bound to the event loop that opened it. `welcome` is the engine's reply to Hello."""

    welcome: Welcome

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.wire_bytes = WireBytes()
        self._context = _Context()
        self._dealer = self._connected(entry.commands)
        self._commands = ZmqStream(self._dealer, self._take)
        self._subscriptions = Subscriptions()
        self._pending: dict[int, Answered] = {}
        self._number = 0
        self._lost: str | None = None
        self._heard = asyncio.get_running_loop().time()
        self._handshake = Handshake(entry)
        self._gone = asyncio.Event()
        self._monitor = ZmqStream(self._dealer.get_monitor_socket(WATCHED), self._handshake.note)
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
        if entry.is_afar:
            await require_reachable(entry)
        connection = cls(entry)
        try:
            hello = protocol.hello(holder=holder, user=user, notebook=notebook, observer=observer)
            welcome = await asyncio.wait_for(connection.ask(hello), timeout)
        except TimeoutError:
            await connection.close()
            raise EngineUnavailable(f"{connection._named} does not answer; {SEE_LOG}.") from None
        except EngineUnavailable as error:
            await connection.close()
            raise connection._handshake.failure() or error from None
        except BaseException:
            await connection.close()
            raise
        if not isinstance(welcome, Welcome):
            await connection.close()
            raise WireError(f"The engine answered Hello with {type(welcome).__name__}.")
        connection.welcome = welcome
        connection.entry = as_told(entry, welcome.model)
        return connection

    @property
    def closed(self) -> bool:
        return self._lost is not None

    async def ended(self) -> str:
        """Wait until the connection is lost or closed; return the reason as a sentence."""
        await self._gone.wait()
        assert self._lost is not None
        return self._lost

    async def ask(self, request: Request) -> Reply:
        """Send a request and return the reply; a Failed reply is raised as the error that it stands for."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def settle(outcome: Reply | DjinnError) -> None:
            if answer.done():
                return  # the asker has stopped waiting
            if isinstance(outcome, DjinnError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self.post(request, settle)
        return await answer

    def post(self, request: Request, answered: Answered) -> None:
        """Send a request; `answered` is called exactly once, in the loop, with the reply or the error to raise."""
        if self._lost is not None:
            answered(EngineUnavailable(self._lost))
            return
        self._number += 1
        try:
            frames = codec.encode_checked(self._number, request)
        except DjinnError as error:
            answered(error)
            return
        self._pending[self._number] = answered
        self._count_sent(frames)
        try:
            self._commands.send(frames)
        except zmq.Again:  # an engine that refused the keys has closed its end, or its queue is full
            self._pending.pop(self._number)(EngineUnavailable(f"{self._named} takes no requests; {SEE_LOG}."))

    async def listen(self, session: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` in the loop for each event of a session ("" for all sessions), from the return of this call
        until the returned function is called."""
        named = session or None
        self._subscriptions.add(named, heard)
        try:
            await self.ask(Listen(session=named))
        except BaseException:
            self._forget(named, heard)
            raise
        return lambda: self._forget(named, heard)

    async def close(self) -> None:
        """Send Goodbye if the connection is up, and close."""
        if self._lost is None and hasattr(self, "welcome"):
            try:
                await asyncio.wait_for(self.ask(Goodbye()), 0.5)
            except (DjinnError, TimeoutError):
                pass
        self._lose("This connection has been closed; load the engine again.")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._dealer.disable_monitor()  # first: zmq would block for ever on a monitor socket that is no longer read
        self._monitor.close()
        self._commands.close()
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
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered(EngineUnavailable(self._lost))

    def _take(self, received: list[zmq.Frame]) -> None:
        self._heard = asyncio.get_running_loop().time()
        frames: list[codec.WireFrame] = [frame.buffer for frame in received]
        self._count_received(frames)
        if codec.is_event(frames):
            self._hear(frames)
        else:
            self._answer(frames)

    def _hear(self, frames: list[codec.WireFrame]) -> None:
        try:
            self._subscriptions.hand_out(codec.decode_event(frames))
        except WireError as error:
            log.warning("An event could not be read: %s", error)

    def _answer(self, frames: list[codec.WireFrame]) -> None:
        outcome: Reply | DjinnError
        try:
            envelope = codec.decode_reply(frames)
            number: int | None = envelope.id
            outcome = envelope.body
        except WireError as error:
            number, outcome = codec.read_number(frames), error
        answered = self._pending.pop(number, None) if number is not None else None
        if answered is None:
            log.warning("A reply that no request waits for: %s", type(outcome).__name__)
            return
        answered(from_code(outcome.code, outcome.message) if isinstance(outcome, Failed) else outcome)

    async def _watch(self) -> None:
        """Wait until the engine's sockets close, then record whether its process has ended or closed the connection."""
        await self._handshake.over.wait()
        if self.entry.is_afar:
            self._lose(f"{self._named} closed the connection; load it again.")
            return
        deadline = asyncio.get_running_loop().time() + DEATH_SECONDS
        while is_alive(self.entry):
            if asyncio.get_running_loop().time() > deadline:
                self._lose(f"{self._named} closed the connection; {SEE_LOG}, and load it again.")
                return
            await asyncio.sleep(0.01)
        self._lose(
            f"{self._named} has ended; the next load starts a new one, and the sessions it has kept "
            f"come back with it; {SEE_LOG}."
        )

    async def _keep_alive(self) -> None:
        """Ping the engine every PING_SECONDS; give the connection up after SILENCE_SECONDS without a message."""
        loop = asyncio.get_running_loop()
        while self._lost is None:
            await asyncio.sleep(PING_SECONDS)
            if loop.time() - self._heard > SILENCE_SECONDS:
                self._lose(f"{self._named} has said nothing for {SILENCE_SECONDS:.0f} s; {SEE_LOG}.")
                return
            self.post(Ping(), lambda outcome: None)

    def _connected(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MILLISECONDS)
        if self.entry.is_afar:
            set_keys(socket, self.entry)
        socket.connect(endpoint)
        return socket

    def _count_sent(self, frames: list[codec.WireFrame]) -> None:
        head, *arrays = (memoryview(frame).nbytes for frame in frames)
        old = self.wire_bytes
        self.wire_bytes = WireBytes(
            sent=old.sent + head + sum(arrays),
            received=old.received,
            arrays_sent=old.arrays_sent + sum(arrays),
            arrays_received=old.arrays_received,
        )

    def _count_received(self, frames: list[codec.WireFrame]) -> None:
        head, *arrays = (memoryview(frame).nbytes for frame in frames)
        old = self.wire_bytes
        self.wire_bytes = WireBytes(
            sent=old.sent,
            received=old.received + head + sum(arrays),
            arrays_sent=old.arrays_sent,
            arrays_received=old.arrays_received + sum(arrays),
        )
