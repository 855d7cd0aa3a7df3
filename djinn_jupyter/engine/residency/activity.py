"""Idle sessions: since when, their announced return, and how notebooks' activity decides evictions and prefetches. Has
no clock itself.

A rest without an announcement is expected to last as long again: times between a person's actions have heavy tails
(Blenn and Van Mieghem 2016, "Are human interactivity times lognormal?", arXiv:1607.02952). While its notebook has the
focus the rest is expected to end sooner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.residency.eviction_policy import (
    Candidate,
    EvictionOrder,
    latest_return_first,
    may_leave_for,
    victims,
)
from djinn_jupyter.engine.residency.priority import QUIET, Claim, Signals, claim_of
from djinn_jupyter.engine.residency.swapping import Bandwidth, Swapping
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import all_storages_of, own_items_of, pages_of
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics, Tier, Transfer

LATE_SECONDS: Final = 60.0  # a session that is later than this counts as unannounced
TIMES_SOONER: Final = 16.0  # back with the focus; in the replay 64 waits as little, and 4 longer


@dataclass(slots=True, kw_only=True)
class RestUnderWay:
    """`since`: when the session was last active; `due`: its announced return."""

    since: float
    due: float | None = None


class IdleTimes:
    """The present rests. `now` never goes backwards."""

    def __init__(self) -> None:
        self._rests: dict[str, RestUnderWay] = {}

    def rests(self, session: str, now: float) -> None:
        """Record that the session rests from now on, if it does not yet."""
        self._rests.setdefault(session, RestUnderWay(since=now))

    def announce(self, session: str, due: float) -> None:
        """Record the announced return of a resting session."""
        self._rests[session].due = due

    def announced(self, session: str, now: float) -> float | None:
        """Return the seconds until the session's announced return, 0 while it is late; None without one."""
        rest = self._rests.get(session)
        return None if rest is None or rest.due is None or now > rest.due + LATE_SECONDS else max(rest.due - now, 0.0)

    def acts(self, session: str, now: float) -> None:
        """Record a use of the session, which ends its rest."""
        self.forget(session)

    def forget(self, session: str) -> None:
        """Forget a session that is closed or active."""
        self._rests.pop(session, None)

    def lasted(self, session: str, now: float) -> float:
        """Return the seconds since the session was active; 0 while it is."""
        rest = self._rests.get(session)
        return 0.0 if rest is None else now - rest.since

    def remaining(self, session: str, now: float, *, focused: bool | None = None) -> float:
        """Return the seconds for which the session is expected to rest on, given whether its notebook is `focused`
        (None: unknown); 0 while it is active."""
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return self.lasted(session, now) / (TIMES_SOONER if focused else 1.0)


Signal = Literal["focused", "expected", "announced"]

PATIENCE: Final = 60.0  # seconds in which a session must be used for its signal to have come true
MEMORY: Final = 0.98  # factor on the record of the focus, at each new outcome
BEFORE: Final = (2.0, 3.0)  # notebooks in focus whose session was used, and all, assumed before any was seen


@dataclass(slots=True, kw_only=True)
class PrefetchCounts:
    """Prefetches begun; `hits` were on the device when requested, `late` ones still on their way, `wasted` ones left
    again unused or were not used in PATIENCE seconds."""

    begun: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0


class Prefetching:
    """Focused notebooks whose session was not used yet, prefetches begun, and the record of the focus."""

    def __init__(self) -> None:
        self.counts = PrefetchCounts()
        self._record = BEFORE
        self._in_focus: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    @property
    def trust_in_focus(self) -> float:
        """The probability that a session is used within PATIENCE seconds of its notebook's focus."""
        true, all_ = self._record
        return true / all_

    def signalled(self, session: str, signal: Signal, now: float) -> None:
        """Record a signal; the first focus of a series counts, and counts as true if a cell follows."""
        self.expire(now)
        if signal == "focused":
            self._in_focus.setdefault(session, now)
        else:
            self._settle(session, came_true=True)

    def began(self, session: str, now: float) -> None:
        self.counts.begun += 1
        self._begun[session] = now

    def used(self, session: str, now: float, *, present: bool) -> None:
        """Record a request for the session; `present`: its bytes were on the device."""
        self.expire(now)
        self._settle(session, came_true=True)
        if self._begun.pop(session, None) is not None:
            self.counts.hits += present
            self.counts.late += not present

    def left(self, session: str) -> None:
        """Record that the session has left the device or was closed."""
        if self._begun.pop(session, None) is not None:
            self.counts.wasted += 1

    def expire(self, now: float) -> None:
        """Count signals and prefetches older than PATIENCE as false."""
        for session, when in list(self._in_focus.items()):
            if now - when > PATIENCE:
                self._settle(session, came_true=False)
        for session, when in list(self._begun.items()):
            if now - when > PATIENCE:
                self.left(session)

    def _settle(self, session: str, *, came_true: bool) -> None:
        if self._in_focus.pop(session, None) is not None:
            true, all_ = self._record
            self._record = (MEMORY * true + came_true, MEMORY * all_ + 1.0)


MARGIN_SECONDS: Final = 0.1  # a layer of another session's prefill may run between two checks
TIMES_THE_WAY: Final = 2.0  # past moves are slower and faster than their mean
AGAIN_SECONDS: Final = 0.1  # after a check without room


def lead(way_back: float) -> float:
    """Return how long before its return a session starts to load, if its bytes need `way_back` seconds."""
    return MARGIN_SECONDS + TIMES_THE_WAY * way_back


class Returns:
    """Each session is planned once, until it is due or withdrawn."""

    def __init__(self) -> None:
        self._begin: dict[str, float] = {}
        self.soonest = inf

    def plan(self, session: str, begin: float) -> None:
        self._begin[session] = begin
        self.soonest = min(self._begin.values())

    def withdraw(self, session: str) -> None:
        if self._begin.pop(session, None) is not None:
            self.soonest = min(self._begin.values(), default=inf)

    def take(self, now: float) -> list[str]:
        """Return the due sessions, the first one first; they are no longer planned."""
        come = sorted((name for name, begin in self._begin.items() if begin <= now), key=self._begin.__getitem__)
        for name in come:
            self.withdraw(name)
        return come


# The notebooks' use of their sessions, the rests between, and the decisions that follow: which session is evicted
# first, and which is prefetched. Moves bytes only through `Swapping`.


class SessionActivity:
    """Expects sessions' returns from notebooks' activity, which others report. `order` sorts the candidates, the first
    to be evicted first; without `prefetches` sessions return only when a request needs them."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        budget: Budget,
        swapping: Swapping,
        order: EvictionOrder = latest_return_first,
        prefetches: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions, self._order, self._prefetches, self._clock = sessions, order, prefetches, clock
        self._slabs, self._budget = slabs, budget
        self._signals: dict[str, Signals] = {}
        self._idle_times, self._bandwidth, self._prefetching = IdleTimes(), Bandwidth(), Prefetching()
        self._returns = Returns()
        self.swapping = swapping

    def claim(self, session: Session) -> Claim:
        return claim_of(session.state, held=session.holder is not None, signals=self.signals(session.name))

    def signals(self, session: str) -> Signals:
        return self._signals.get(session, QUIET)

    def note(self, session: Session, activity: Activity) -> None:
        """Record an activity of the session's notebook. May begin to load the session."""
        self._signals[session.name] = self.signals(session.name).noted(activity)
        if session.state == "running" or session.work is not None:
            return
        if session.generation is not None:
            self._idle_times.rests(session.name, self._clock())
        if activity == "focused" or activity == "expected":
            self._signalled(session, activity)

    def announce_rest(self, session: Session, seconds: float) -> None:
        """Record that the session will be used again in so many seconds."""
        now = self._clock()
        self._idle_times.rests(session.name, now)
        self._idle_times.announce(session.name, now + seconds)
        self._plan_return(session)

    def is_expected(self, session: Session, within: float) -> bool:
        """True where the session has announced its return within so many seconds, or within PATIENCE, in which it may
        have been loaded already; and is not long overdue."""
        due_in = self._idle_times.announced(session.name, self._clock())
        return due_in is not None and due_in < max(within, PATIENCE)

    def asked(self, session: Session) -> None:
        """Record a request that needs the session's bytes."""
        now = self._clock()
        self._returns.withdraw(session.name)
        self._idle_times.acts(session.name, now)
        self._prefetching.used(session.name, now, present=session.residence.present)

    def left_alone(self, session: Session) -> None:
        """Record that the session's requests are done, for now."""
        if session.generation is not None and session.state != "running" and session.work is None:
            self._idle_times.rests(session.name, self._clock())

    def swapped(self, session: Session, transfer: Transfer | None) -> None:
        """Record the end of a move of the session; without a transfer, it failed or was called back."""
        if transfer is not None:
            self._bandwidth.learn(transfer)
        if session.residence.state in ("host", "disk"):
            self._prefetching.left(session.name)
            if transfer is not None:  # a load that failed would fail again at once, and until the session is due
                self._plan_return(session)

    def closed(self, session: str) -> None:
        self._signals.pop(session, None)
        self._returns.withdraw(session)
        self._idle_times.forget(session)
        self._prefetching.left(session)

    def choose(self, sessions: Sequence[Session], need: int) -> list[Session]:
        """Return the sessions to evict for `need` free bytes, then the others, in case some of those cannot leave."""
        ordered = self._in_order(sessions)
        chosen = victims(ordered, max(need, 1))
        return [self._sessions[c.session] for c in (*chosen, *(c for c in ordered if c not in chosen))]

    def _in_order(self, sessions: Sequence[Session]) -> list[Candidate]:
        now = self._clock()
        return self._order(self._candidate(session, now) for session in sessions)

    def _candidate(self, session: Session, now: float) -> Candidate:
        return Candidate(
            session=session.name,
            claim=self.claim(session),
            frees_bytes=private_bytes(session, self.swapping.storage_table),
            rested_seconds=self._idle_times.lasted(session.name, now),
            remaining_seconds=self._idle_times.remaining(session.name, now, focused=self.signals(session.name).focused),
        )

    def statistics(self) -> PrefetchStatistics:
        counts = self._prefetching.counts
        return PrefetchStatistics(
            begun=counts.begun,
            hits=counts.hits,
            late=counts.late,
            wasted=counts.wasted,
            trust_in_focus=self._prefetching.trust_in_focus,
        )

    @property
    def due_in(self) -> float:
        """The seconds until the first announced return has to be prepared; infinite where there is none."""
        return max(self._returns.soonest - self._clock(), 0.0)

    def fetch_returning(self) -> None:
        """Begin to load the sessions whose announced return is near. Without room, try again until it is due."""
        now = self._clock()
        for name in self._returns.take(now) if now >= self._returns.soonest else ():
            session = self._sessions[name]
            self._signalled(session, "announced")
            if session.residence.state in ("host", "disk") and self._idle_times.announced(name, now):
                self._returns.plan(name, now + AGAIN_SECONDS)

    def _plan_return(self, session: Session) -> None:
        now = self._clock()
        due_in = self._idle_times.announced(session.name, now)
        if due_in is not None and self._prefetches:
            way = self._way_back(session) if session.residence.state in ("host", "disk") else (0, 0.0)
            self._returns.plan(session.name, now + due_in - lead(way[1]))

    def _way_back(self, session: Session) -> tuple[int, float]:
        """Return the missing bytes of a session on the device, and the seconds to load them."""
        away = [item for item in own_items_of(session, self.swapping.storage_table) if not item.resident]
        size = sum(item.nbytes for item in away)
        tier: Tier = "disk" if any("host" not in item.copies for item in away) else "host"
        return size, self._bandwidth.seconds(tier, size)

    def _signalled(self, session: Session, signal: Signal) -> None:
        if not self._prefetches:
            return
        now, here = self._clock(), session.residence
        self._prefetching.signalled(session.name, signal, now)
        if here.state == "storing":
            self.swapping.swap_in(session, "prefetch")  # all bytes are still on the device
            return
        if here.state not in ("host", "disk"):
            return
        due_in = self._idle_times.announced(session.name, now) if signal == "announced" else None
        if self._may_come(session, due_in or 0.0):
            self._prefetching.began(session.name, now)
            self.swapping.swap_in(session, "prefetch")

    def _may_come(self, session: Session, due_in: float) -> bool:
        """True where no request waits for room, and the session, back in so many seconds, has room or may get it."""
        if self.swapping.is_behind(session):
            return False
        missing = self._way_back(session)[0] - free_bytes(self._slabs, self._budget)
        return missing <= 0 or may_leave_for(due_in, self._in_order(self.swapping.candidates(session)), missing)


def private_bytes(session: Session, storage_table: StorageTable) -> int:
    """Return the bytes that evicting the session frees: its pages except those shared with forks, and its tensors."""
    pages = sum(page.nbytes for page in pages_of(session) if page.resident and page.references == 1)
    return pages + sum(storage.counted for storage in all_storages_of(session, storage_table))


def free_bytes(slabs: Sequence[Slab], budget: Budget) -> int:
    """Return the bytes that may still be taken, also by growing: free pages, free budget, and working copies."""
    counts = [slab.statistics() for slab in slabs]
    return sum(b.pages_free * b.page_bytes for b in counts) + budget.free + budget.lent
