"""The message queue of one browser window, bounded so that a slow window delays no other.

When the queue exceeds its limits, it is dropped, and a snapshot, made when the window is ready for it, takes its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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
    """One window's queue. `send` returns when the window's socket has taken the message. `focus` is the notebook that
    the window shows."""

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
