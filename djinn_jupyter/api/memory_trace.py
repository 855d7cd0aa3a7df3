"""Memory over time, from an engine's accounting and the system, sampled by a separate thread during any work.

Starts and stops nothing in the engine. A reading makes two requests; each reply is consistent in itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from djinn_jupyter.api.copies import NoEngine
from djinn_jupyter.api.tables import Charted, Tabular
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link.channel import Channel, sessions_of
from djinn_jupyter.link.io_thread import awaited
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import EngineStatistics, PersonMemory, RingSlot, SessionDescription, Transfer
from djinn_jupyter.wire.request_base import Answer

COLUMNS: Final = (
    "at", "accounted", "weights", "ring_bytes", "empty", "host", "disk", "budget", "process", "mapped", "runtime",
    "beyond", "in_use", "total", "others",
)  # fmt: skip
MOST_HERTZ: Final = 1000.0
LONGEST = 20_000  # readings; the older half is thinned out when there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading, `at` seconds after the trace began. All figures are bytes; None where not measured.

    From the engine's accounting: resident `weights`, the slots of the `ring` that streamed weights pass through,
    `sessions` (name, bytes on the device), `empty` pages that are allocated but unused, bytes on `host` and `disk`, and
    the `budget` of weights and sessions together. From the system: `process` (of which `mapped` are file mappings,
    `runtime` Python and its libraries, `beyond` not accounted for), `in_use` and `total` of the device, and the part of
    it that `others` use. `people` has the memory of each person who shares the engine; it is empty where all sessions
    belong to its own user.
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
    people: tuple[PersonMemory, ...] = ()

    @property
    def ring_bytes(self) -> int:
        """The bytes of the slots that streamed weights pass through."""
        return sum(slot.bytes_allocated for slot in self.ring)

    @property
    def accounted(self) -> int:
        """The bytes taken on the device according to the engine's accounting."""
        return self.weights + self.ring_bytes + sum(size for _, size in self.sessions) + self.empty

    @property
    def booked(self) -> int:
        """The former name of `accounted`."""
        return self.accounted


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTransfer:
    """A session's bytes that moved, `at` seconds after the trace began."""

    at: float
    session: str
    transfer: Transfer


def reading_of(at: float, statistics: EngineStatistics, sessions: tuple[SessionDescription, ...]) -> Reading:
    """Return the statistics and sessions as bytes by owner. Shared pages count once, for the first session by name."""
    weights = statistics.weights.bytes_on_device if statistics.weights is not None else statistics.weight_bytes
    ring = statistics.weights.ring if statistics.weights is not None else ()
    in_pages = sum((slab.pages - slab.pages_free) * slab.page_bytes for slab in statistics.slabs)
    tiers = {tier.tier: tier.bytes_used for tier in statistics.tiers}
    return Reading(
        at=at,
        weights=weights - sum(slot.bytes_allocated for slot in ring),
        sessions=_by_session(sessions, in_pages + _beside_pages(statistics)),
        empty=max(0, sum(slab.bytes_allocated for slab in statistics.slabs) - in_pages),
        host=tiers.get("host", 0),
        disk=tiers.get("disk", 0),
        budget=weights + _limit(statistics),
        process=statistics.process_bytes,
        in_use=statistics.device_bytes_in_use,
        total=statistics.device_bytes_total,
        others=statistics.other_bytes,
        ring=ring,
        mapped=None if statistics.process is None else statistics.process.mapped_bytes,
        runtime=None if statistics.process is None else statistics.process.runtime_bytes,
        beyond=None if statistics.process is None else statistics.process.beyond_bytes,
        people=statistics.people,
    )


def _limit(statistics: EngineStatistics) -> int:
    """Return the most bytes that sessions may hold, on all devices together."""
    if statistics.budget is not None:
        return statistics.budget.bytes_limit
    return max((slab.bytes_limit for slab in statistics.slabs), default=0)


def _beside_pages(statistics: EngineStatistics) -> int:
    """Return the bytes of working copies, stops, states and all other holdings besides pages."""
    if statistics.budget is None:
        return sum(slab.working_bytes for slab in statistics.slabs)
    return sum(held.bytes_held for held in statistics.budget.holdings if held.kind != "pages")


def _by_session(sessions: tuple[SessionDescription, ...], held: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for session in sorted(sessions, key=lambda s: s.name):
        size = min(session.device_bytes, held)
        held -= size
        if size:
            found.append((session.name, size))
    return tuple(found)


class _NoLastReading(Exception):
    """The trace is to end while the connection to the engine is down."""


def _period(hertz: float) -> float:
    """Return the seconds between two readings. Raises UsageError for an invalid rate."""
    if not 0 < hertz <= MOST_HERTZ:
        raise UsageError(f"hertz is above 0 and at most {MOST_HERTZ:g} readings a second; it cannot be {hertz}.")
    return 1.0 / hertz


class MemoryTrace(Tabular, Charted):
    """Readings of an engine's memory and moves between its tiers, from now until `stop`, for `seconds`, or until the
    engine ends; `error` then holds the reason. The trace's own thread calls `heard` after each reading, each half
    second while the connection to the engine is down, and once more at the end. `model` is the engine's name."""

    _view = "trace_view"

    def __init__(
        self,
        channel: Channel,
        *,
        model: str = "the engine",
        hertz: float = 4.0,
        seconds: float | None = None,
        heard: Callable[[MemoryTrace], None] = lambda trace: None,
    ) -> None:
        self.model = model
        self.readings: list[Reading] = []
        self.moves: list[TracedTransfer] = []
        self.error: DjinnError | None = None
        self._channel, self._period, self._seconds, self._heard = channel, _period(hertz), seconds, heard
        self._began = time.monotonic()
        self._told = threading.Event()
        self._read()
        self._forget = channel.listen("", self._hear)
        self._thread = threading.Thread(target=self._follow, name="djinn-memory", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """True until the trace ends."""
        return self._thread.is_alive() and not self._told.is_set()

    @property
    def down_since(self) -> float | None:
        """The time at which the connection to the engine was lost, in seconds since the epoch; None while it is up."""
        return self._channel.down_since

    def end(self) -> None:
        """Ask the trace to stop, from any thread; returns at once."""
        self._told.set()

    def stop(self) -> MemoryTrace:
        """Stop the trace and wait for its last reading, if the connection to the engine is up."""
        self.end()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        return self

    def __enter__(self) -> MemoryTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "readings": list(self.readings), "moves": list(self.moves), "error": self.error}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _channel=NoEngine(), _told=threading.Event(), _thread=threading.Thread())
        self.end()  # a copy has the readings so far

    def columns(self) -> dict[str, list[Any]]:
        """Return the readings as lists by column: `at`, the bytes of each kind (None where not measured), and of each
        session (0 where it held none)."""
        found: dict[str, list[Any]] = {name: [getattr(one, name) for one in self.readings] for name in COLUMNS}
        held = [dict(one.sessions) for one in self.readings]
        for name in sorted({session for one in held for session in one}):
            found[f"session {name}"] = [one.get(name, 0) for one in held]
        return found

    def __repr__(self) -> str:
        most = max(reading.accounted for reading in self.readings)
        return f"Memory trace: {len(self.readings)} readings, {len(self.moves)} moves, at most {most:,} bytes accounted"

    def _follow(self) -> None:
        try:
            self._tell()
            while not self._told.wait(self._period) and not self._is_over():
                self._read()
                self._tell()
            self._read()
        except _NoLastReading:
            pass
        except DjinnError as error:
            self.error = error
        finally:
            self._told.set()
            self._forget()
            self._tell()

    def _tell(self) -> None:
        """Call `heard`; an error in it ends the trace, in order."""
        try:
            self._heard(self)
        except Exception as error:  # noqa: BLE001  the caller's own code
            self._told.set()
            self.error = UsageError(f"The trace has ended, because heard raised {type(error).__name__}: {error}.")

    def _is_over(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._began >= self._seconds

    def _read(self) -> None:
        statistics = self._answer(ask.ReadStatistics()).statistics
        sessions = sessions_of(self._answer)
        self.readings.append(reading_of(time.monotonic() - self._began, statistics, sessions))
        if len(self.readings) > LONGEST:
            self.readings[: LONGEST // 2] = self.readings[: LONGEST // 2 : 2]

    def _answer(self, request: ask.RequestBase[Answer]) -> Answer:
        return awaited(self._channel.ask(request), self._look)

    def _look(self) -> None:
        """Report that the connection is down. Raises _NoLastReading where nothing waits for it any more."""
        if self.down_since is None:
            return
        if self._told.is_set():
            raise _NoLastReading
        self._tell()

    def _hear(self, event: replies.Event) -> None:
        if isinstance(event, replies.SessionSwapped):
            at = time.monotonic() - self._began
            self.moves.append(TracedTransfer(at=at, session=event.session, transfer=event.transfer))
