"""Memory over time, as an engine's books and the system report it: sampled by a thread of its own, beside any work.

Starts and stops nothing in the engine. What one reading holds was true at one moment of the engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from djinn_jupyter.client.line import Line, ask_for
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import EngineStatistics, RingSlot, SessionDescription, Transfer

LONGEST = 20_000  # readings; the older half is thinned out when there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One moment, `at` seconds after the trace began. All figures are bytes; what nobody measured is None.

    From the books: `weights` that stay, the slots of the `ring` that others stream through, `sessions` (name, what it
    holds on the device), `empty` pages that are allocated and hold nothing, what lies on `host` and `disk`, and the
    `budget` of weights and sessions together. From the system: `process` (of which `mapped` are parts of files,
    `runtime` Python and its libraries, `beyond` what nobody counts), `in_use` and `total` of the device, and what
    `others` have of it.
    """

    at: float
    weights: int
    sessions: tuple[tuple[str, int], ...]
    empty: int
    host: int
    disk: int
    budget: int
    process: int | None
    in_use: int | None
    total: int | None
    others: int | None
    ring: tuple[RingSlot, ...] = ()
    mapped: int | None = None
    runtime: int | None = None
    beyond: int | None = None

    @property
    def ring_bytes(self) -> int:
        return sum(slot.bytes_allocated for slot in self.ring)

    @property
    def booked(self) -> int:
        """What the books say is taken on the device."""
        return self.weights + self.ring_bytes + sum(size for _, size in self.sessions) + self.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A session's bytes that moved, `at` seconds after the trace began."""

    at: float
    session: str
    transfer: Transfer


def reading_of(at: float, books: EngineStatistics, sessions: tuple[SessionDescription, ...]) -> Reading:
    """The books and the sessions of one moment as bytes by owner. Pages that sessions share count once, for the first
    of them by name."""
    weights = books.weights.bytes_on_device if books.weights is not None else books.weight_bytes
    ring = books.weights.ring if books.weights is not None else ()
    in_pages = sum((slab.pages - slab.pages_free) * slab.page_bytes for slab in books.slabs)
    tiers = {tier.tier: tier.bytes_used for tier in books.tiers}
    return Reading(
        at=at,
        weights=weights - sum(slot.bytes_allocated for slot in ring),
        sessions=_by_session(sessions, in_pages + _beside_pages(books)),
        empty=max(0, sum(slab.bytes_allocated for slab in books.slabs) - in_pages),
        host=tiers.get("host", 0),
        disk=tiers.get("disk", 0),
        budget=weights + max((slab.bytes_limit for slab in books.slabs), default=0),
        process=books.process_bytes,
        in_use=books.device_bytes_in_use,
        total=books.device_bytes_total,
        others=books.other_bytes,
        ring=ring,
        mapped=None if books.process is None else books.process.mapped_bytes,
        runtime=None if books.process is None else books.process.runtime_bytes,
        beyond=None if books.process is None else books.process.beyond_bytes,
    )


def _beside_pages(books: EngineStatistics) -> int:
    """Working copies, stops and states, and whatever else sessions have."""
    if books.budget is None:
        return sum(slab.working_bytes for slab in books.slabs)
    return sum(held.bytes_held for held in books.budget.holdings if held.kind != "pages")


def _by_session(sessions: tuple[SessionDescription, ...], held: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for session in sorted(sessions, key=lambda s: s.name):
        size = min(session.device_bytes, held)
        held -= size
        if size:
            found.append((session.name, size))
    return tuple(found)


class MemoryTrace:
    """Readings of an engine's memory and the moves between its tiers, from now until `stop`, `seconds` later, or the
    engine's end; then `error` says why. `heard` is called in the trace's own thread after each reading, and once more
    when it has ended."""

    def __init__(
        self,
        line: Line,
        *,
        hertz: float = 4.0,
        seconds: float | None = None,
        heard: Callable[[MemoryTrace], None] = lambda trace: None,
    ) -> None:
        self.readings: list[Reading] = []
        self.moves: list[Move] = []
        self.error: DjinnError | None = None
        self._line, self._period, self._seconds, self._heard = line, 1.0 / hertz, seconds, heard
        self._began = time.monotonic()
        self._told = threading.Event()
        self._read()
        self._forget = line.listen("", self._hear)
        self._thread = threading.Thread(target=self._follow, name="djinn-memory", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._told.is_set()

    def end(self) -> None:
        """Tell it to stop, from any thread; returns at once."""
        self._told.set()

    def stop(self) -> MemoryTrace:
        """Stop; returns when the last reading is in."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return self

    def __enter__(self) -> MemoryTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        most = max(reading.booked for reading in self.readings)
        return (
            f"Memory trace: {len(self.readings)} readings, {len(self.moves)} moves, at most {most:,} bytes by the books"
        )

    def _follow(self) -> None:
        try:
            self._heard(self)
            while not self._told.wait(self._period) and not self._is_over():
                self._read()
                self._heard(self)
            self._read()
        except DjinnError as error:
            self.error = error
        finally:
            self._told.set()
            self._forget()
            self._heard(self)

    def _is_over(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._began >= self._seconds

    def _read(self) -> None:
        books = ask_for(self._line, ask.ReadStatistics(), replies.Statistics).statistics
        sessions = ask_for(self._line, ask.ListSessions(), replies.Sessions).sessions
        self.readings.append(reading_of(time.monotonic() - self._began, books, sessions))
        if len(self.readings) > LONGEST:
            self.readings[: LONGEST // 2] = self.readings[: LONGEST // 2 : 2]

    def _hear(self, event: replies.Event) -> None:
        if isinstance(event, replies.SessionSwapped):
            at = time.monotonic() - self._began
            self.moves.append(Move(at=at, session=event.session, transfer=event.transfer))
