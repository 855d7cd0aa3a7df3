"""Replies go out when the state that they report is sound and in the journal; it is published next, for any thread to
read, as one frozen value.

A request's effect is published at once after its reply was handed over, and a reader waits meanwhile: a client finds
there what its own request did, and no reply waits for a description. Only sessions that were touched are described
anew, so that fifty idle ones cost nothing."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from msgspec.structs import replace

from djinn_jupyter.engine.loop.mailbox import QueuedRequest
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.memory.kv.rows import check_invariants
from djinn_jupyter.engine.residency.residency import ProcessFootprint
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import MOST_BYTES, Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system import device, log
from djinn_jupyter.engine.system.device import require_alive
from djinn_jupyter.engine.system.faults import broken, lost
from djinn_jupyter.parallel.ranks import Ranks
from djinn_jupyter.wire import codec, nouns
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import RUN, entries_of
from djinn_jupyter.wire.replies import Closed, Failed, Reply, Sessions
from djinn_jupyter.wire.texts import in_quotes

PERIOD: Final = 0.2
LONGEST_PERIOD: Final = 1.0
QUICK: Final = 0.001  # seconds of counting people's memory, that an idle engine does not put off
SHARE: Final = 0.005  # of the thread that computes: a batch of many rows takes milliseconds to describe
PATIENCE: Final = 10.0  # seconds; for a reader, if the engine ends between a reply and its publication


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The statistics and the sessions at one moment; replaced as a whole, so any thread may read it. `used` is when
    each of `described` was last used, by the monotonic clock."""

    statistics: nouns.EngineStatistics
    described: tuple[nouns.SessionDescription, ...]
    used: tuple[float, ...]

    @property
    def sessions(self) -> tuple[nouns.SessionDescription, ...]:
        """The sessions as described, with idle times up to now: an idle session is not described again."""
        return self._idle_now(0, len(self.described))

    def page(self, first: int) -> Sessions:
        """Return the sessions from the `first` on, at least one, as many as are encoded in one part."""
        last, entries = first, 0
        for one in self.described[first:]:
            entries += entries_of(one)
            if entries > RUN and last > first:
                break
            last += 1
        return Sessions(sessions=self._idle_now(first, last), first=first, total=len(self.described))

    def _idle_now(self, first: int, last: int) -> tuple[nouns.SessionDescription, ...]:
        now, chosen = time.monotonic(), zip(self.described[first:last], self.used[first:last], strict=True)
        return tuple(replace(one, idle_seconds=now - used) for one, used in chosen)


class StatePublisher(BuiltOfParts):
    """Keeps `reading` up to date: describes again the sessions that the table reports as touched. Invariant: another
    thread's reading has the effects of all replies posted before. It waits for the publication, a quarter of a
    millisecond; the engine's thread does not read in between."""

    def __init__(
        self,
        parts: EngineParts,
        where: tuple[torch.device, ...],
        footprint: ProcessFootprint | None,
        people: Callable[[], tuple[nouns.PersonMemory, ...]],
    ) -> None:
        super().__init__(parts)
        self._weights, self._counters = self._forward.weights, parts.counters
        self._where, self._footprint = where, footprint
        self._measure_people, self._people = people, people()
        self._miscounted, self._counting_seconds = False, 0.0  # people's memory since sessions were touched
        self._described: dict[str, nouns.SessionDescription] = {}
        self._published, self._period = 0.0, PERIOD
        self.outside = device.Usage.read(*where)  # the machine's memory use when it was last measured
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
        """True while readers wait for the state of sent replies."""
        return not self._current.is_set()

    def fall_behind(self) -> None:
        """Make readers wait for the next publication, because the effects of replies are missing from this one."""
        self._current.clear()

    @property
    def due(self) -> bool:
        """True where the last full measurement is over PERIOD seconds old, or LONGEST_PERIOD if it took that long."""
        return time.monotonic() - self._published > self._period

    def publish(self, *, all_sessions: bool = False) -> None:
        """Publish a new reading. `all_sessions` describes the untouched ones too (they grow idle)."""
        measures = self.due
        begun = time.thread_time() if measures else 0.0
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
            with self._faults.during("it measured memory"):  # opens files, and too many may be open
                self.outside = device.Usage.read(*self._where)
        self._miscounted |= bool(touched) or before.keys() != self._described.keys()
        if measures:
            self._count_people()
        self._reading = self._read()

    def recount_people(self) -> None:
        """Publish the memory of each person again, where sessions were touched since it was counted: an idle engine
        does so at once, unless counting takes long."""
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

    def report_journal(self, trouble: str | None, unkept: frozenset[str]) -> None:
        """Publish a change of the journal's trouble at once: an idle engine may not publish for seconds."""
        if (trouble, unkept) != (self._journal_trouble, self._unkept):
            for session in unkept ^ self._unkept:
                self._sessions.touch(session)
            self._journal_trouble, self._unkept = trouble, unkept
            self.publish()

    def _describe(self, session: Session) -> nouns.SessionDescription:
        described = reports.describe(session)
        return replace(described, kept=False) if session.name in self._unkept else described

    def _read(self) -> EngineReading:
        described = tuple(self._described.values())
        used = tuple(self._sessions[one.name].last_used for one in described)
        return EngineReading(statistics=self._statistics(), described=described, used=used)

    def _statistics(self) -> nouns.EngineStatistics:
        weights, budget, tiers = self._weights.statistics(), self._parts.budget.statistics(), self._parts.tiers
        return nouns.EngineStatistics(
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
            slabs=tuple(slab.statistics() for slab in self._parts.slabs),
            process_bytes=self.outside.process_bytes,
            device_bytes_in_use=self.outside.device_in_use,
            device_bytes_total=self.outside.device_total,
            weights=weights,
            other_bytes=self.outside.other_bytes,
            tiers=tiers.statistics(),
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
            limits=self._parts.config.limits,
            process=None
            if self._footprint is None
            else self._footprint.reading(self.outside, weights, budget.bytes_taken, tiers),
        )


CHECKS_TAKE_ONE_IN: Final = 50  # parts of the engine's time: thousands of pages take milliseconds to check


class Accounting(BuiltOfParts):
    """The accounting of memory as a whole: slabs, page tables, tiers and storages must agree."""

    def __init__(self, parts: EngineParts, ranks: Ranks | None) -> None:
        super().__init__(parts)
        self._ranks, self._due = ranks, 0.0

    def check(self, contents: bool = False) -> None:
        """Raise InvariantError unless all agree; with `contents`, compare working copies too."""
        caches = [*(session.cache for session in self._sessions.values()), *self._runtime.sharing.caches]
        check_invariants(self._parts.slabs, caches, contents, tiers=self._parts.tiers, storages=self._storage_table)

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
        """Check, unless the checks before have taken more than their share of the time. An error is a fault."""
        begun = time.monotonic()
        if begun < self._due:
            return
        with self._faults.during("it checked the accounting"):
            self.check()
        self._due = begun + CHECKS_TAKE_ONE_IN * (time.monotonic() - begun)


def changed_by(request: ask.Request) -> tuple[str, ...]:
    """Return the names of the sessions that a request may have changed."""
    if not isinstance(request, ask.SessionRequest) or not type(request).terms.changes:
        return ()
    made = request.made
    return (request.session,) if made in (None, request.session) else (request.session, made)


def kept_with(request: ask.Request) -> tuple[str, ...]:
    """Return the names of the sessions that keep the reply to a request, because it may not be done twice: those that
    it changes, and the one that it writes to a checkpoint."""
    if isinstance(request, ask.SessionRequest) and request.saved is not None:
        return (request.session,)
    return changed_by(request)


def lacks_bytes(session: Session, request: ask.Request) -> bool:
    """True where the request needs data of the session that is off the device."""
    here = session.residence
    if here.present or type(request).terms.while_away:
        return False
    return not (request.forgets and here.state in ("host", "disk"))


def lacks_rows(session: Session, request: ask.Request) -> bool:
    """True where the request reads or continues from rows and states lost with an earlier process."""
    return session.needs_recompute and not type(request).terms.without_rows and not request.forgets


BROKEN_OFF: Final = Failed(
    code="EngineUnavailable",
    message="The engine ended while this was under way, and the next one does not do it again: the session stands as "
    "far as it came. Look at it, and go on from there.",
)
"""The reply to a request whose work an earlier engine began."""
NOT_KEPT: Final = Failed(
    code="EngineUnavailable",
    message="An earlier engine did this, but its reply is not kept any more: look at the session before you go on.",
)


def reply_to(queued: QueuedRequest, sessions: SessionTable) -> Reply | None:
    """Return the reply to a repeated request; None for one that has to be executed. A repeated close of a missing
    session is answered as closed."""
    names = kept_with(queued.request)
    if queued.known_as is None or not names:
        return None
    session = sessions.get(names[-1])  # for a fork the new session: without it nothing was done
    if session is None:
        closed = queued.known_as.again and isinstance(queued.request, ask.Close)
        return Closed(pages_freed=0) if closed else None
    found = session.answered.find(queued.known_as)
    if found is None:
        return None
    if not found.done:
        return BROKEN_OFF
    return NOT_KEPT if found.reply is None else codec.decode_reply([found.reply]).body


def begin(queued: QueuedRequest, session: Session) -> None:
    """Record that work on a session begins; the journal may have a part of it before its reply."""
    if queued.known_as is not None and type(queued.request).terms.changes:
        session.answered.begin(queued.known_as)


def note(queued: QueuedRequest, reply: Reply, sessions: SessionTable) -> None:
    """Keep the reply with the sessions that the request changed. A refused one did nothing."""
    if queued.known_as is None:
        return
    for name in kept_with(queued.request):
        session = sessions.get(name)
        if session is None or (isinstance(reply, Failed) and session.answered.find(queued.known_as) is None):
            continue
        session.answered.conclude(queued.known_as, _kept(reply))
        sessions.changed(name)


def _kept(reply: Reply) -> bytes | None:
    head, *arrays = codec.encode_reply(0, reply)
    return bytes(head) if not arrays and len(head) <= MOST_BYTES else None


ReadyReplies = list[tuple[QueuedRequest, Reply]]


class ReplyGate(BuiltOfParts):
    """Sends replies, which say where the journal cannot take the state that they report. Until that is published no
    thread reads the state published before."""

    def __init__(self, parts: EngineParts, accounting: Accounting, state_publisher: StatePublisher) -> None:
        super().__init__(parts)
        self._accounting, self._state_publisher = accounting, state_publisher

    def send(self) -> bool:
        """Post the replies that are ready; the state that they report has to be published next. Return True where there
        were any. Raises EngineBroken, and ClaimLost."""
        self._accounting.require_sound()
        ready = self._open.take_answered()
        with self._faults.during("it wrote the journal"):
            ready = self._kept(ready)
        if ready:
            self._persistence.require_claim()  # after the writing: what is reported was kept while it was this engine's
            self._state_publisher.fall_behind()
        for queued, reply in ready:
            with self._faults.during("a reply was handed over"):
                queued.reply(reply)
        return bool(ready)

    def publish(self, idle: bool = False) -> None:
        """Publish the state that the replies reported, and what is due; `idle` describes untouched sessions too."""
        with self._faults.during("it described its sessions"):
            self._state_publisher.report_journal(self._persistence.trouble, self._persistence.unkept)
            if self._state_publisher.behind or self._state_publisher.due:
                self._state_publisher.publish(all_sessions=idle)

    def _kept(self, ready: ReadyReplies) -> ReadyReplies:
        """Write the sessions that the answered requests changed to the journal. Mark the replies `not_kept` on
        failure."""
        for queued, reply in ready:
            note(queued, reply, self._sessions)
        self._persistence.write(self._sessions, [name for queued, _ in ready for name in kept_with(queued.request)])
        unkept = self._persistence.unkept
        return [(queued, self._noted(reply, queued.request, unkept)) for queued, reply in ready] if unkept else ready

    def _noted(self, reply: Reply, request: ask.Request, unkept: frozenset[str]) -> Reply:
        changed = changed_by(request)
        return replace(reply, not_kept=self._persistence.trouble) if unkept.intersection(changed) else reply
