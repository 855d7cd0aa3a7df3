"""The notebooks' use of their sessions, the rests between, and the decisions that follow: which session is
evicted first, and which is prefetched. Moves bytes only by asking `Swapping` to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.residency.bandwidth import Bandwidth
from djinn_jupyter.engine.residency.eviction_policy import (
    Candidate,
    EvictionOrder,
    in_order,
    may_leave_for,
    victims,
)
from djinn_jupyter.engine.residency.idle_times import IdleTimes
from djinn_jupyter.engine.residency.prefetch import PATIENCE, Prefetching, Signal
from djinn_jupyter.engine.residency.priority import QUIET, Claim, Signals, claim_of
from djinn_jupyter.engine.residency.returns import AGAIN_SECONDS, Returns, lead
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.footprint import all_storages_of, own_items_of, pages_of
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics, Tier, Transfer


class SessionActivity:
    """Expects sessions back by notebooks' activity, and is told it by those that know. `order` sorts the
    candidates, the first to be evicted first; without `prefetches` sessions come back only when a request needs them.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        budget: Budget,
        swapping: Swapping,
        order: EvictionOrder = in_order,
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

    # ------------------------------------------------------------------------------------------- activity

    def note(self, session: Session, activity: Activity) -> None:
        """Note an activity of the session's notebook. May begin to bring the session back."""
        self._signals[session.name] = self.signals(session.name).noted(activity)
        if session.state == "running" or session.work is not None:
            return
        if session.generation is not None:
            self._idle_times.rests(session.name, self._clock())
        if activity == "focused" or activity == "expected":
            self._signalled(session, activity)

    def announce_rest(self, session: Session, seconds: float) -> None:
        """Note that the session will be used again in so many seconds."""
        now = self._clock()
        self._idle_times.rests(session.name, now)
        self._idle_times.announce(session.name, now + seconds)
        self._plan_return(session)

    def is_expected(self, session: Session, within: float) -> bool:
        """True where the session has announced its return within so many seconds, or within PATIENCE, in which it may
        have been brought back already; and is not long overdue."""
        due_in = self._idle_times.announced(session.name, self._clock())
        return due_in is not None and due_in < max(within, PATIENCE)

    def asked(self, session: Session) -> None:
        """Note a request that needs the session's bytes."""
        now = self._clock()
        self._returns.withdraw(session.name)
        self._idle_times.acts(session.name, now)
        self._prefetching.used(session.name, now, present=session.residence.present)

    def left_alone(self, session: Session) -> None:
        """Note that the session's requests are done, for now."""
        if session.generation is not None and session.state != "running" and session.work is None:
            self._idle_times.rests(session.name, self._clock())

    def swapped(self, session: Session, transfer: Transfer | None) -> None:
        """Note the end of a move of the session; without a transfer, it failed or was called back."""
        if transfer is not None:
            self._bandwidth.learn(transfer)
        if session.residence.state in ("host", "disk"):
            self._prefetching.left(session.name)
            if transfer is not None:  # a way back that failed would fail again at once, and until the session is due
                self._plan_return(session)

    def closed(self, session: str) -> None:
        self._signals.pop(session, None)
        self._returns.withdraw(session)
        self._idle_times.forget(session)
        self._prefetching.left(session)

    # ------------------------------------------------------------------------------------------- eviction

    def choose(self, sessions: Sequence[Session], need: int) -> list[Session]:
        """Return the sessions to evict so that `need` bytes are free, then the others, in case some of those cannot
        leave."""
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

    # ------------------------------------------------------------------------------------------ prefetch

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
        """The seconds until the first announced return is to be prepared; infinite where there is none."""
        return max(self._returns.soonest - self._clock(), 0.0)

    def fetch_returning(self) -> None:
        """Begin to bring back the sessions whose announced return is near. One that finds no room is looked at again
        until it is due."""
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
        """Return the bytes that a session lacks on the device, and the seconds to bring them."""
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
        """True where no request waits for room, and there is some for the session, which returns in so many seconds,
        or others may leave for it."""
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
