"""The one interface to residency: moves between the tiers, evictions and notebook activity, joined."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.activity import SessionActivity
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.eviction_policy import EvictionOrder, in_order
from djinn_jupyter.engine.residency.external_pressure import ExternalPressure
from djinn_jupyter.engine.residency.pass_room import StopRoom
from djinn_jupyter.engine.residency.quotas import MemoryQuotas
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.options import SettledOptions
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.nouns import Tier, Transfer


class Residency:
    """`order` sorts the sessions to evict. Sessions in `waiting` have queued requests; `others_go_on` is True where the
    job of another session has work, `at_work` has the sessions of all jobs; `swapped` is called at the end of every
    move."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        budget: Budget,
        tiers: Tiers,
        storage_table: StorageTable,
        *,
        options: SettledOptions,
        begun: Usage,
        faults: Faults,
        waiting: Container[Session],
        others_go_on: Callable[[Session, Callable[[Session], bool]], bool],
        at_work: Callable[[], Iterable[Session]],
        swapped: Callable[[Session, Transfer | None], None],
        new_cache: Callable[[], PagedCache],
        saved: Callable[[str], int] = lambda person: 0,
        added: Callable[[str | None], int] = lambda person: 0,
        order: EvictionOrder = in_order,
        prefetches: bool = True,
    ) -> None:
        self._storage_table, self._faults, self._told = storage_table, faults, swapped
        self._most_given = budget.limit
        self.quotas = MemoryQuotas(sessions, storage_table, saved, added)
        self.swapping = Swapping(
            sessions,
            slabs,
            tiers,
            storage_table,
            waiting=waiting,
            swapped=self._swapped,
            find_room=self.find,
            in_quota=self._may_come,
        )
        self.activity = SessionActivity(sessions, slabs, budget, self.swapping, order, prefetches)
        self.eviction = Eviction(
            sessions,
            budget,
            self.swapping,
            self.quotas,
            idle_seconds=options.idle_swap_seconds,
            choose=self.activity.choose,
            waiting=waiting,
            others_go_on=others_go_on,
            at_work=at_work,
            is_expected=self.activity.is_expected,
        )
        # What others call is said by the part that does it.
        older_stops = self.swapping.older_stops
        self.bound, self.pinned, self.away = older_stops.bound, older_stops.pinned, older_stops.away
        self.settle, self.require_tier = self.swapping.settle, tiers.keeper
        self.in_quota, self.relieve = self.eviction.in_quota, self.eviction.relieve
        self.note, self.asked = self.activity.note, self.activity.asked
        self.fetch_returning, self.statistics = self.activity.fetch_returning, self.activity.statistics
        self.heed = ExternalPressure(sessions, self.eviction, self.swapping, begun).heed
        self.new_cache, self.short_of_quota = new_cache, self.quotas.short
        self.note_tensors, self.let_go = storage_table.note, storage_table.note_freed
        room = StopRoom(budget, self.swapping, self.eviction)
        self.entered, self.with_room, self.behind_earlier = room.entered, room.with_room, room.behind_earlier
        self.set_aside, self.set_aside_now, self.put_back = room.set_aside, room.set_aside_now, room.put_back
        self.accounted, self.fetched = room.accounted, room.fetched

    def _swapped(self, session: Session, transfer: Transfer | None) -> None:
        self.activity.swapped(session, transfer)
        self._told(session, transfer)

    def _may_come(self, session: Session, need: int) -> bool:
        """Return `in_quota` of a session that comes to the device; for one that no request needs yet none leaves."""
        moving = session.residence.moving
        if moving is not None and moving.cause == "prefetch" and self.quotas.short(session, need):
            raise self.quotas.refusal(session, need)
        return self.in_quota(session, need)

    # --- what sessions do ------------------------------------------------------------------------------------------

    def announce_rest(self, session: Session, seconds: float) -> None:
        """Note that the session will be used again in so many seconds: it leaves the device now where idleness would
        make it leave before that, and is brought back in time."""
        self.activity.announce_rest(session, seconds)
        self.eviction.begin_rest(session, seconds)

    def holder_has_gone(self, session: Session) -> bool:
        """Return whether its kernel is known to have ended, though its client may not have been missed yet."""
        return session.holder is not None and self.activity.signals(session.name).gone

    def left_alone(self, session: Session) -> None:
        """Note that the session's requests are done, for now. Stops may have waited for the end of its work to be sent
        to the disk."""
        self.activity.left_alone(session)
        if session.work is not None:
            return
        if session.frame is None:
            session.cache.truncate(session.cache.length)  # no pass goes on from the rows of a look
        if session.history.beyond:
            self.bound(session)

    def closed(self, session: Session) -> None:
        session.residence.give_up_move()
        self.let_go()
        self.activity.closed(session.name)

    # --- moves -----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """The count of events that may have made room or brought a session back."""
        return self.swapping.changes

    def room_changed(self) -> None:
        """Note that a session's work or its queue has ended, or that it is gone; jobs and moves that wait for room look
        again."""
        self.swapping.note_change()
        with self._faults.during("it moved sessions between tiers"):
            self.swapping.advance_all()

    def swap_out(self, session: Session, tier: Tier) -> None:
        """Begin to swap the session out at a client's request. Raises IllegalMove and TierFull."""
        self.swapping.swap_out(session, tier, "asked")

    def swap_in(self, session: Session) -> None:
        """Begin to swap the session in at a client's request, or stop swapping it out."""
        self.swapping.swap_in(session, "asked")

    def need(self, session: Session) -> None:
        """Begin to swap the session in for a request that needs its bytes."""
        self.swapping.swap_in(session, "needed")

    def settled(self, session: Session) -> Pieces:
        """Run steps until no move of the session is under way."""
        while not session.residence.settled:
            yield lambda: not session.residence.settled

    def begin_anew(self, session: Session) -> None:
        """Give up the session's bytes: it counts as on the device, with none. An engine that never rests looks too
        which tensors of the old line are gone."""
        self.swapping.begin_anew(session)
        self.let_go()

    # --- room ------------------------------------------------------------------------------------------------------

    def find(self, wanting: Session, need: int) -> bool:
        """Evict other sessions. Return True when there is room now or waiting for the next change helps."""
        return self.eviction.find(wanting, need)

    def require_given(self, need: int) -> None:
        """Raise UsageError where the arrays of rules and edits would take more than sessions may have on the device."""
        self.quotas.require_given(need, self._most_given)

    @property
    def has_quotas(self) -> bool:
        return self.quotas.heeded

    def drop_copies(self, person: str) -> bool:
        """Drop the copies on the host of what is on the device of a person. Return True where there were any."""
        return self.swapping.drop_copies_of_the_present(lambda session: person_of(session.name) == person)

    # --- without a request -----------------------------------------------------------------------------------------

    @property
    def has_to_look(self) -> bool:
        """True while some session could be evicted, or evicted ones left memory that is not yet given back."""
        return self.swapping.gives_back or bool(self.swapping.candidates())

    @property
    def due_in(self) -> float:
        """The seconds until a session that announced its return is to be brought back; infinite where there is none."""
        return self.activity.due_in

    def rest(self) -> None:
        """Do the work of an idle engine: purge, write through, swap out, give memory back."""
        self._storage_table.purge()
        self.eviction.attend()
