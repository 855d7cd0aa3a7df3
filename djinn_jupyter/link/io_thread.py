"""One daemon thread that runs an event loop, so that sockets work beside synchronous user code. Works inside and
outside Jupyter; touches no other event loop. A forked child has no such thread: its calls raise EngineUnavailable.
`AwaitedReply` shows a waiting caller what the connection does; `ZmqStream` is a socket in a loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

import zmq

from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.link import waiting
from djinn_jupyter.link.waiting import beside_debuggers
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.request_base import Answer

Result = TypeVar("Result")
LOOK_SECONDS: Final = 0.5
TOLD_SECONDS: Final = 2.0  # a shorter loss is not reported
SHOWN_SECONDS: Final = 1.0  # nor is a reply that has arrived by then


def awaited(future: Future[Result], look: Callable[[], None]) -> Result:
    """Return the result of a future. `look` is called every LOOK_SECONDS until it is there, and once more then."""
    with waiting.waited("The engine", "ends the waiting"):
        try:
            while not future.done():
                with suppress(TimeoutError):
                    return future.result(LOOK_SECONDS)
                look()
                waiting.look()
            return future.result(0)
        finally:
            look()


Way = Literal["received", "sent"]
_WORDS: Final = {"received": ("receiving", "come"), "sent": ("sending", "gone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """`done` of `total` bytes, unpacked; `carried` are those that crossed the connection."""

    way: Way
    done: int
    total: int
    carried: int
    seconds: float

    @property
    def share(self) -> float:
        return self.done / self.total

    @property
    def ended(self) -> str:
        """The line that stays at the end."""
        if self.done < self.total:
            return f"given up: {spell_bytes(self.done)} of {spell_bytes(self.total)} had {_WORDS[self.way][1]}"
        return f"{self.way} {spell_bytes(self.total)} in {self.seconds:.0f} s, {self._rate} over the line"

    @property
    def _rate(self) -> str:
        return f"{spell_bytes(self.carried / self.seconds)}/s"

    def __str__(self) -> str:
        said = f"{_WORDS[self.way][0]} {spell_bytes(self.done)} of {spell_bytes(self.total)}"
        if not self.done:
            return said
        left = self.seconds * (self.total - self.done) / self.done
        return f"{said}, {self._rate}, about {left:.0f} s left"


class Show(Protocol):
    """Shows the progress of a large message; `over` once it has crossed, or was given up."""

    def __call__(self, progress: SoFar, *, over: bool) -> None: ...


class WaitedConnection(Protocol):
    @property
    def entry(self) -> Entry: ...
    @property
    def down_since(self) -> float | None: ...
    @property
    def progress(self) -> SoFar | None: ...
    @property
    def latest(self) -> SoFar | None: ...


class ConnectionNotice:
    """Reports, in the thread that calls `look`, once that the connection is down, and once that it is back; and shows
    the progress of a large message that takes a while."""

    def __init__(self, connection: WaitedConnection) -> None:
        self._connection = connection
        self.show: Show = OnStderr()
        self._told: str | None = None  # the place of the engine whose connection is down
        self._shows = False

    def look(self) -> None:
        self._look_at_loss(self._connection.down_since, self._connection.entry.place)
        progress, latest = self._connection.progress, self._connection.latest
        if progress is not None and progress.seconds >= SHOWN_SECONDS:
            self._shows = True
            self.show(progress, over=False)
        elif progress is None and latest is not None and self._shows:
            self._shows = False
            self.show(latest, over=True)

    def _look_at_loss(self, since: float | None, place: str) -> None:
        if since is None and self._told is not None:
            moved = f"The engine at {self._told} is at {place} now, and the line to it is back."
            _on_stderr(f"The line to {place} is back." if self._told == place else moved)
            self._told = None
        elif since is not None and self._told is None and (down := time.time() - since) >= TOLD_SECONDS:
            self._told = place
            _on_stderr(
                f"The line to {place} has been down for {down:.0f} s. What was asked for goes on when it is back; an "
                "interrupt ends the waiting."
            )


class OnStderr:
    """Prints once the size of the reply and the expected time."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, progress: SoFar, *, over: bool) -> None:
        if not over and not self._said:
            said = str(progress)
            _on_stderr(f"{said[0].upper()}{said[1:]}. An interrupt ends it, and the session stays as it is.")
        self._said = not over


def _on_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class AwaitedReply(Future[Answer]):
    """The future of a reply. A thread that waits for it without a limit sees reports of a lost connection and of a
    large reply's progress. `given_up` is called when an interrupt ends the wait."""

    def __init__(self, look: Callable[[], None], given_up: Callable[[], None]) -> None:
        super().__init__()
        self.number: int | None = None  # set when it is sent
        self._look, self._given_up = look, given_up

    def result(self, timeout: float | None = None) -> Answer:
        if timeout is not None:
            return super().result(timeout)
        try:
            return awaited(self, self._look)
        except KeyboardInterrupt:
            self._given_up()
            raise


class IoThread:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = beside_debuggers(threading.Thread(target=self._run, name="djinn-io", daemon=True))
        self._thread.start()

    @property
    def usable(self) -> bool:
        """False in a forked child and after `stop`."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def wait(self, work: Coroutine[Any, Any, Result], look: Callable[[], None] = lambda: None) -> Result:
        """Run `work` in the loop and wait for its result; `look` is called now and then meanwhile. An interrupt cancels
        the work. Do not call it from the loop itself."""
        try:
            self._require_usable()
        except EngineUnavailable:
            work.close()
            raise
        working = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return awaited(working, look)
        finally:
            working.cancel()  # does nothing for a finished task

    def call(self, work: Callable[[], None]) -> None:
        """Schedule `work` in the loop and return at once."""
        self._require_usable()
        self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        if self.usable:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _require_usable(self) -> None:
        if not self.usable:
            raise EngineUnavailable(
                "The connection to the engine does not reach into a forked process (or has been closed): "
                "load the engine again here."
            )


def settle(future: Future[Result] | asyncio.Future[Result], outcome: Result | BaseException) -> None:
    """Set a future's result or its error, unless its caller has stopped waiting."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


# A zmq socket in an event loop, without zmq.asyncio: a round trip takes 0.10 ms here and 0.15 ms with the futures of
# zmq.asyncio (two cores, idle service that echoes). pyzmq's own ZMQStream was as fast at best and a third slower at
# worst, and is built on tornado, which a program without Jupyter would import for it.

MESSAGES_PER_TURN = 1000
Take = Callable[[list[zmq.Frame]], None]


class ZmqStream:
    """Call `take(frames)` in the running loop for every message, and send without waiting.

    The socket's descriptor signals only *changes*, and any socket call may consume the signal: after every call,
    messages are read until none is left.
    """

    def __init__(self, socket: zmq.Socket[bytes], take: Take) -> None:
        self._socket, self._take = socket, take
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._drain)
        self._loop.call_soon(self._drain)

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        self._socket.send_multipart(frames, zmq.NOBLOCK, copy=len(frames) == 1)  # arrays are not copied
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Close the socket; `take` is not called again."""
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _drain(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(frames)
        self._loop.call_soon(self._drain)
