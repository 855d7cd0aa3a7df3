"""The published state of an engine: statistics and sessions as one frozen value, for any thread to read.

A request's effect is published at once after its reply was handed over, and a reader waits meanwhile: a client finds
there what its own request did, and no reply waits for a description. Only sessions that were touched are described
anew, so that fifty idle ones cost nothing.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from msgspec.structs import replace

from djinn_jupyter.engine.loop.scheduler import Scheduler
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import check_invariants
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.residence import Weights
from djinn_jupyter.engine.residency.residency import ProcessFootprint, Residency
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system import device, log
from djinn_jupyter.engine.system.device import require_alive
from djinn_jupyter.engine.system.faults import Counters, Faults, broken, lost
from djinn_jupyter.parallel.ranks import Ranks
from djinn_jupyter.wire.codec import RUN, entries_of
from djinn_jupyter.wire.nouns import (
    EngineStatistics,
    GivenLimits,
    PersonMemory,
    ProcessMemory,
    SessionDescription,
    WeightsStatistics,
)
from djinn_jupyter.wire.replies import Sessions
from djinn_jupyter.wire.texts import in_quotes

PERIOD: Final = 0.2
LONGEST_PERIOD: Final = 1.0
QUICK: Final = 0.001  # seconds of counting people's memory, that an idle engine does not put off
SHARE: Final = 0.005  # of the thread that computes: a batch of many rows takes milliseconds to describe
PATIENCE: Final = 10.0  # seconds; of a reader, should the engine break off between a reply and its publication


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The statistics and the sessions at one moment; replaced as a whole, so any thread may read it. `used` is when
    each of `described` was last used, by the monotonic clock."""

    statistics: EngineStatistics
    described: tuple[SessionDescription, ...]
    used: tuple[float, ...]

    @property
    def sessions(self) -> tuple[SessionDescription, ...]:
        """The sessions as described, with idle times up to now: an idle session is not described anew."""
        return self._idle_now(0, len(self.described))

    def page(self, first: int) -> Sessions:
        """Return the sessions from the `first` on, one at least, as many as are encoded in one part."""
        last, entries = first, 0
        for one in self.described[first:]:
            entries += entries_of(one)
            if entries > RUN and last > first:
                break
            last += 1
        return Sessions(sessions=self._idle_now(first, last), first=first, total=len(self.described))

    def _idle_now(self, first: int, last: int) -> tuple[SessionDescription, ...]:
        now, chosen = time.monotonic(), zip(self.described[first:last], self.used[first:last], strict=True)
        return tuple(replace(one, idle_seconds=now - used) for one, used in chosen)


class StatePublisher:
    """Keeps `reading` up to date: describes anew the sessions that the table says were touched. Invariant: what another
    thread reads has the effects of all replies that were handed over before. It waits for the publication, a quarter of
    a millisecond; the engine's thread does not read between the two."""

    def __init__(
        self,
        sessions: SessionTable,
        slabs: Sequence[Slab],
        scheduler: Scheduler,
        where: tuple[torch.device, ...],
        weights: Weights,
        tiers: Tiers,
        residency: Residency,
        faults: Faults,
        budget: Budget,
        counters: Counters,
        footprint: ProcessFootprint | None,
        people: Callable[[], tuple[PersonMemory, ...]],
        limits: GivenLimits,
    ) -> None:
        self._sessions, self._slabs, self._scheduler, self._where = sessions, slabs, scheduler, where
        self._weights, self._tiers, self._residency, self._faults = weights, tiers, residency, faults
        self._budget, self._counters, self._footprint = budget, counters, footprint
        self._measure_people, self._people, self._limits = people, people(), limits
        self._miscounted, self._counting_seconds = False, 0.0  # people's memory since sessions were touched
        self._described: dict[str, SessionDescription] = {}
        self._published, self._period = 0.0, PERIOD
        self._outside = device.Usage.read(*where)
        self._journal_trouble: str | None = None
        self._unkept: frozenset[str] = frozenset()
        self._current = threading.Event()
        self._reading = self._read()
        self._current.set()

    @property
    def reading(self) -> EngineReading:
        """The last published state; from any thread."""
        self._current.wait(PATIENCE)
        return self._reading

    @property
    def behind(self) -> bool:
        """True while readers wait for the state of replies that went out."""
        return not self._current.is_set()

    def fall_behind(self) -> None:
        """Have readers wait for the next publication, because replies go out whose effects are not in this one."""
        self._current.clear()

    @property
    def outside(self) -> device.Usage:
        """The machine's memory use when it was last measured."""
        return self._outside

    @property
    def due(self) -> bool:
        """True where the last full measurement is more than PERIOD seconds old, or LONGEST_PERIOD where it took that
        long."""
        return time.monotonic() - self._published > self._period

    def publish(self, *, all_sessions: bool = False) -> None:
        """Publish a new reading. `all_sessions` describes the untouched ones too (they grow idle)."""
        measures, begun = self.due, time.thread_time()
        try:
            self._renew(all_sessions, measures)
        finally:
            self._current.set()
        if measures:
            self._period = min(LONGEST_PERIOD, max(PERIOD, (time.thread_time() - begun) / SHARE))

    def _renew(self, all_sessions: bool, measures: bool) -> None:
        touched = self._sessions.take_touched()
        stale = set(self._sessions) if all_sessions else touched
        before, self._described = self._described, {}
        for name, session in self._sessions.items():
            if name in before:
                self._described[name] = before[name]
            if name in stale or name not in before:
                with self._faults.during(f"it described session {in_quotes(name)}"):
                    self._described[name] = self._describe(session)
        if measures:  # asking the system costs as much as answering a request
            self._published = time.monotonic()
            with self._faults.during("it measured memory"):  # opens files, of which there may be too many
                self._outside = device.Usage.read(*self._where)
        self._miscounted |= bool(touched) or before.keys() != self._described.keys()
        if measures:
            self._count_people()
        self._reading = self._read()

    def recount_people(self) -> None:
        """Publish the memory of each person anew, where sessions were touched since it was counted: what an idle engine
        does at once, unless counting takes long."""
        if self._miscounted and self._counting_seconds < QUICK:
            self._count_people()
            self._reading = dataclasses.replace(
                self._reading, statistics=replace(self._reading.statistics, people=self._people)
            )

    def _count_people(self) -> None:
        begun = time.thread_time()
        with self._faults.during("it counted the memory of each person"):
            self._people, self._miscounted = self._measure_people(), False
        self._counting_seconds = time.thread_time() - begun

    def heed_journal(self, trouble: str | None, unkept: frozenset[str]) -> None:
        """Publish a change of the journal's trouble at once: an idle engine may not publish for seconds."""
        if (trouble, unkept) != (self._journal_trouble, self._unkept):
            for session in unkept ^ self._unkept:
                self._sessions.touch(session)
            self._journal_trouble, self._unkept = trouble, unkept
            self.publish()

    def _describe(self, session: Session) -> SessionDescription:
        described = reports.describe(session)
        return replace(described, kept=False) if session.name in self._unkept else described

    def _read(self) -> EngineReading:
        described = tuple(self._described.values())
        used = tuple(self._sessions[one.name].last_used for one in described)
        return EngineReading(statistics=self._statistics(), described=described, used=used)

    def _process(self, weights: WeightsStatistics, taken: int) -> ProcessMemory:
        assert self._footprint is not None
        return self._footprint.reading(self._outside, weights, taken, self._tiers)

    def _statistics(self) -> EngineStatistics:
        weights, budget = self._weights.statistics(), self._budget.statistics()
        return EngineStatistics(
            pid=os.getpid(),
            uptime_seconds=time.monotonic() - self._counters.started,
            sessions=len(self._sessions),
            sessions_running=self._scheduler.running,
            passes=self._counters.passes,
            layers_run=self._counters.layers_run,
            tokens_sampled=self._counters.tokens_sampled,
            requests_answered=self._counters.requests_answered,
            preemptions=self._counters.preemptions,
            weight_bytes=self._weights.total,
            slabs=tuple(slab.statistics() for slab in self._slabs),
            process_bytes=self._outside.process_bytes,
            device_bytes_in_use=self._outside.device_in_use,
            device_bytes_total=self._outside.device_total,
            weights=weights,
            other_bytes=self._outside.other_bytes,
            tiers=self._tiers.statistics(),
            prefetches=self._residency.statistics(),
            journal_trouble=self._journal_trouble,
            log_trouble=log.trouble(),
            faults=self._faults.count,
            last_fault=self._faults.last,
            recovered_exact=self._counters.recovered_exact,
            recovered_recomputed=self._counters.recovered_recomputed,
            layers_replayed=self._counters.layers_replayed,
            graphs_postponed=self._counters.graphs_postponed,
            whole_heads=self._counters.whole_heads,
            budget=budget,
            people=self._people,
            limits=self._limits,
            process=None if self._footprint is None else self._process(weights, budget.bytes_taken),
        )


# The engine's accounting of memory as a whole: slabs, page tables, tiers and storages must agree.

CHECKS_TAKE_ONE_IN: Final = 50  # parts of the engine's time: thousands of pages take milliseconds to check


class Accounting:
    def __init__(
        self,
        sessions: SessionTable,
        slabs: Sequence[Slab],
        tiers: Tiers,
        storage_table: StorageTable,
        faults: Faults,
        of_no_session: Callable[[], Iterable[PagedCache]],
        ranks: Ranks | None = None,
    ) -> None:
        self._sessions, self._slabs, self._tiers = sessions, slabs, tiers
        self._of_no_session, self._ranks = of_no_session, ranks
        self._storage_table, self._faults = storage_table, faults
        self._due = 0.0

    def check(self, contents: bool = False) -> None:
        """Raise InvariantError unless all agree; with `contents`, compare working copies too."""
        caches = [*(session.cache for session in self._sessions.values()), *self._of_no_session()]
        check_invariants(self._slabs, caches, contents, tiers=self._tiers, storages=self._storage_table)

    def require_sound(self) -> None:
        """Raise EngineBroken where an error has left inconsistent accounting or a device that does no more work, before
        wrong state is sent or written; and where a rank of a split model is lost."""
        if self._ranks is not None:
            self._ranks.require_all()
        if not self._faults.suspected:
            return
        try:
            self.check()
        except Exception as error:
            raise broken(error) from error
        try:
            for device in self._storage_table.devices:
                require_alive(device)
        except RuntimeError as error:
            raise lost(error) from error
        self._faults.clear_suspicion()

    def check_in_turn(self) -> None:
        """Check where the checks before have taken no more than their part of the time. An error is a fault."""
        begun = time.monotonic()
        if begun < self._due:
            return
        with self._faults.during("it checked the accounting"):
            self.check()
        self._due = begun + CHECKS_TAKE_ONE_IN * (time.monotonic() - begun)
