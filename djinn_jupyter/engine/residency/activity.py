"""The notebooks' use of their sessions, the statistics learned from it, and the decisions that follow: which session is
evicted first, and which is prefetched. Moves bytes only by asking `Swapping` to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.storages import Blobs
from djinn_jupyter.engine.residency.bandwidth import Bandwidth
from djinn_jupyter.engine.residency.eviction_policy import (
    Candidate,
    Order,
    in_order,
    victims,
)
from djinn_jupyter.engine.residency.idle_times import IdleTimes
from djinn_jupyter.engine.residency.prefetch import PATIENCE, Prefetching, Signal
from djinn_jupyter.engine.residency.priority import (
    QUIET,
    Claim,
    Signals,
    claim_of,
)
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.footprint import (
    Belongings,
    blobs_of,
    own_items_of,
    pages_of,
)
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics, Tier, Transfer


class SessionActivity:
    """Learns from notebooks' activity when sessions come back. `order` sorts the candidates, the first to be evicted
    first."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        budget: Budget,
        swapping: Swapping,
        order: Order = in_order,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions, self._order, self._clock = sessions, order, clock
        self._slabs, self._budget = slabs, budget
        self._signals: dict[str, Signals] = {}
        self._idle_times, self._bandwidth, self._prefetching = IdleTimes(), Bandwidth(), Prefetching()
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
            self._idle_times.rests(session.name, self.signals(session.name).focused, self._clock())
        if activity == "focused" or activity == "expected":
            self._signalled(session, activity)

    def asked(self, session: Session) -> None:
        """Note a request that needs the session's bytes."""
        now = self._clock()
        self._idle_times.acts(session.name, now)
        self._prefetching.used(session.name, now, present=session.residence.present)

    def left_alone(self, session: Session) -> None:
        """Note that the session's requests are done, for now."""
        if session.generation is not None and session.state != "running" and session.work is None:
            self._idle_times.rests(session.name, self.signals(session.name).focused, self._clock())

    def swapped(self, session: Session, transfer: Transfer | None) -> None:
        """Note the end of a move of the session; without a transfer, it failed or was called back."""
        if transfer is not None:
            self._bandwidth.learn(transfer)
        if session.residence.state in ("host", "disk"):
            self._prefetching.left(session.name)

    def closed(self, session: str) -> None:
        self._signals.pop(session, None)
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
        self._idle_times.catch_up(now)
        return self._order(self._candidate(session, now) for session in sessions)

    def _candidate(self, session: Session, now: float) -> Candidate:
        belongings = Belongings.count(session, self.swapping.blobs)
        return Candidate(
            session=session.name,
            claim=self.claim(session),
            frees_bytes=private_bytes(session, self.swapping.blobs),
            dirty_bytes=belongings.dirty,
            restore_seconds=self._bandwidth.seconds(self._would_go_to(belongings.dirty), belongings.device),
            rested_seconds=self._idle_times.lasted(session.name, now),
            remaining_seconds=self._idle_times.remaining(session.name, now),
        )

    def _would_go_to(self, dirty: int) -> Tier:
        """Return the host while it has room for `dirty` bytes, else the disk."""
        host = self.swapping.tiers.host
        if host is None:
            return "disk"
        books = host.statistics()
        return "host" if dirty <= books.bytes_limit - books.bytes_used else "disk"

    # ------------------------------------------------------------------------------------------ prefetch

    def statistics(self) -> PrefetchStatistics:
        books = self._prefetching.books
        return PrefetchStatistics(
            begun=books.begun,
            hits=books.hits,
            late=books.late,
            wasted=books.wasted,
            trust_in_focus=self._prefetching.trust("focused"),
        )

    def _signalled(self, session: Session, signal: Signal) -> None:
        now, here = self._clock(), session.residence
        self._prefetching.signalled(session.name, signal, now)
        if here.state == "storing":
            self.swapping.swap_in(session, "prefetch")  # all bytes are still on the device
            return
        if here.state not in ("host", "disk"):
            return
        away = [item for item in own_items_of(session, self.swapping.blobs) if not item.resident]
        size = sum(item.nbytes for item in away)
        tier: Tier = "disk" if any("host" not in item.copies for item in away) else "host"
        leaving = self._who_would_leave(session, size, now)
        if leaving is not None and self._prefetching.worth_it(signal, self._bandwidth.seconds(tier, size), leaving):
            self._prefetching.began(session.name, now)
            self.swapping.swap_in(session, "prefetch")

    def _who_would_leave(self, session: Session, size: int, now: float) -> list[tuple[float, float]] | None:
        """Return for each session evicted for this one the probability that it is used soon and the seconds it would
        then wait; None where a session in use (STEPPING) would have to leave, or where there is no room at all."""
        missing = size - free_bytes(self._slabs, self._budget)
        if missing <= 0:
            return []
        chosen = victims(self._in_order(self.swapping.candidates(session)), missing)
        if sum(c.frees_bytes for c in chosen) < missing or any(c.claim is Claim.STEPPING for c in chosen):
            return None
        return [(self._idle_times.chance(c.session, now, PATIENCE), c.restore_seconds) for c in chosen]


def private_bytes(session: Session, blobs: Blobs) -> int:
    """Return the bytes that evicting the session frees: its pages except those shared with forks, and its tensors."""
    pages = sum(page.nbytes for page in pages_of(session) if page.resident and page.references == 1)
    return pages + sum(blob.counted for blob in blobs_of(session, blobs))


def free_bytes(slabs: Sequence[Slab], budget: Budget) -> int:
    """Return the bytes that may still be taken, also by growing: free pages, free budget, and working copies."""
    books = [slab.statistics() for slab in slabs]
    return sum(b.pages_free * b.page_bytes for b in books) + budget.free + budget.lent
