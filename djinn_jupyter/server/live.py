"""The live picture that browsers see, and its messages in order. Knows neither sockets nor engines. Messages are
numbered consecutively; a snapshot has the number of the last message that it includes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from djinn_jupyter._version import __version__
from djinn_jupyter.server import messages
from djinn_jupyter.server.messages import (
    EngineChange,
    Live,
    LiveDelta,
    LiveEngine,
    LiveEvent,
    LiveOutcome,
    LiveSession,
    LiveSnapshot,
    Sampled,
)
from djinn_jupyter.wire.nouns import EngineStatistics
from djinn_jupyter.wire.replies import Event, Reply

CLOCK_SECONDS = 1.5  # largest difference between two computations of the same moment


def settled(before: LiveEngine | None, now: LiveEngine) -> LiveEngine:
    """Return `now`, with parts that differ only in clocks and in the count of answered requests taken from `before`."""
    if before is None:
        return now
    statistics = now.statistics
    if before.statistics is not None and statistics is not None and _same_statistics(before.statistics, statistics):
        statistics = before.statistics
    sessions = {name: _settled(before.sessions.get(name), session) for name, session in now.sessions.items()}
    return LiveEngine(found=now.found, statistics=statistics, sessions=sessions)


def change(before: LiveEngine, now: LiveEngine, sampled: Mapping[str, Sampled]) -> EngineChange | None:
    """Return the change to report for an engine; None when nothing is new."""
    closed: dict[str, LiveSession | None] = {name: None for name in before.sessions if name not in now.sessions}
    sessions = closed | {
        name: session for name, session in now.sessions.items() if before.sessions.get(name) != session
    }
    changed = EngineChange(
        found=now.found if now.found != before.found else UNSET,
        statistics=now.statistics if now.statistics and now.statistics != before.statistics else UNSET,
        sessions=sessions or UNSET,
        sampled=dict(sampled) or UNSET,
    )
    return changed if changed != EngineChange() else None


def _same_statistics(before: EngineStatistics, now: EngineStatistics) -> bool:
    clocks = {"uptime_seconds": 0.0, "requests_answered": 0}
    return replace(before, **clocks) == replace(now, **clocks)


def _settled(before: LiveSession | None, now: LiveSession) -> LiveSession:
    if before is None or abs(before.idle_since - now.idle_since) > CLOCK_SECONDS:
        return now
    same = replace(now, idle_since=before.idle_since)
    as_idle = replace(same.described, idle_seconds=before.described.idle_seconds)
    return before if replace(same, described=as_idle) == before else same


# The message queue of one browser window, bounded so that a slow window delays no other. When the queue exceeds its
# limits, it is dropped, and a snapshot, made when the window is ready for it, takes its place.

WAITING_MESSAGES = 256
WAITING_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatistics:
    """Counts of one reader. `resyncs` counts how often a queue over its limits was dropped for a snapshot."""

    waiting: int
    waiting_bytes: int
    sent: int
    resyncs: int


class Reader:
    """One window's queue. `send` returns when the window's socket has taken the message. `focus` is its notebook."""

    def __init__(self, *, send: Callable[[bytes], Awaitable[None]], snapshot: Callable[[], bytes]) -> None:
        self._send, self._snapshot = send, snapshot
        self._waiting: deque[bytes] = deque()
        self._bytes = self._sent = self._resyncs = 0
        self._behind = True  # it begins with a snapshot
        self._wake = asyncio.Event()
        self._wake.set()
        self.focus: str | None = None

    def statistics(self) -> ReaderStatistics:
        return ReaderStatistics(
            waiting=len(self._waiting), waiting_bytes=self._bytes, sent=self._sent, resyncs=self._resyncs
        )

    def post(self, message: bytes) -> None:
        """Queue a message without waiting."""
        if self._behind:
            return  # the due snapshot will include it
        if len(self._waiting) >= WAITING_MESSAGES or self._bytes + len(message) > WAITING_BYTES:
            self._resyncs += 1
            self.resync()
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self._wake.set()

    def resync(self) -> None:
        """Drop all queued messages; a snapshot is sent next."""
        self._waiting.clear()
        self._bytes = 0
        self._behind = True
        self._wake.set()

    async def run(self) -> None:
        """Send queued messages until cancelled, or until `send` raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._behind or self._waiting:
                await self._send(self._next())
                self._sent += 1

    def _next(self) -> bytes:
        if self._behind:
            self._behind = False
            return self._snapshot()
        message = self._waiting.popleft()
        self._bytes -= len(message)
        return message


OUTCOMES_KEPT = 16


class LivePicture:
    """The state last sent to all readers. Used in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._engines: dict[str, LiveEngine] = {}
        self._outcomes: deque[LiveOutcome] = deque(maxlen=OUTCOMES_KEPT)
        self._sequence = 0
        self.readers: set[Reader] = set()

    @property
    def focused(self) -> frozenset[str]:
        """The notebooks shown in at least one window."""
        return frozenset(reader.focus for reader in self.readers if reader.focus is not None)

    def show(
        self,
        engines: Mapping[str, LiveEngine],
        *,
        gone: Mapping[str, str],
        sampled: Mapping[str, Mapping[str, Sampled]],
    ) -> None:
        """Take a new reading of all engines and send the changes, if any, as a delta. `gone` maps ended engines to
        reasons, "" where they ended in order."""
        before = self._engines
        self._engines = {name: settled(before.get(name), engine) for name, engine in engines.items()}
        appeared = {name: engine for name, engine in self._engines.items() if name not in before}
        changes = {
            name: change(before[name], engine, sampled.get(name, {}))
            for name, engine in self._engines.items()
            if name in before
        }
        changed = {name: changed for name, changed in changes.items() if changed is not None}
        ended = {name: gone.get(name, "The engine has ended.") for name in before if name not in engines}
        if appeared or changed or ended:
            self._tell(
                LiveDelta(sequence=self._next(), at=self._clock(), appeared=appeared, changed=changed, gone=ended)
            )

    def event(self, engine: str, event: Event) -> None:
        self._tell(LiveEvent(sequence=self._next(), engine=engine, event=event))

    def outcome(self, engine: str, session: str, request: str, move: int, reply: Reply) -> None:
        outcome = LiveOutcome(
            sequence=self._next(), engine=engine, session=session, request=request, move=move, reply=reply
        )
        self._outcomes.append(outcome)
        self._tell(outcome)

    def snapshot(self) -> bytes:
        return messages.write(
            LiveSnapshot(
                sequence=self._sequence,
                at=self._clock(),
                version=__version__,
                engines=self._engines,
                outcomes=tuple(self._outcomes),
            )
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _tell(self, message: Live) -> None:
        if self.readers:
            written = messages.write(message)
            for reader in self.readers:
                reader.post(written)
