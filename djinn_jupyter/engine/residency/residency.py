"""The one interface to residency: moves between the tiers, evictions and notebook activity, joined."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.memory.offload.storages import Storage, StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.activity import SessionActivity
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.eviction_policy import EvictionOrder, in_order
from djinn_jupyter.engine.residency.external_pressure import ExternalPressure
from djinn_jupyter.engine.residency.pass_room import StopRoom
from djinn_jupyter.engine.residency.quotas import MemoryQuotas, none_added, none_saved
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.options import SettledOptions
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics, Tier, Transfer


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
        saved: Callable[[str], int] = none_saved,
        added: Callable[[str | None], int] = none_added,
        order: EvictionOrder = in_order,
        prefetches: bool = True,
    ) -> None:
        self._storage_table, self._faults, self._told, self._new_cache = storage_table, faults, swapped, new_cache
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
        self.external_pressure = ExternalPressure(sessions, self.eviction, self.swapping, begun)
        self.older_stops = self.swapping.older_stops
        self.stop_room = StopRoom(budget, self.swapping, self.eviction)
        self.entered, self.with_room = self.stop_room.entered, self.stop_room.with_room
        self.set_aside, self.behind_earlier = self.stop_room.set_aside, self.stop_room.behind_earlier

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

    def note(self, session: Session, activity: Activity) -> None:
        """Note an activity of the session's notebook. May begin to bring the session back."""
        self.activity.note(session, activity)

    def announce_rest(self, session: Session, seconds: float) -> None:
        """Note that the session will be used again in so many seconds: it leaves the device now where idleness would
        make it leave before that, and is brought back in time."""
        self.activity.announce_rest(session, seconds)
        self.eviction.begin_rest(session, seconds)

    def holder_has_gone(self, session: Session) -> bool:
        """Return whether its kernel is known to have ended, though its client may not have been missed yet."""
        return session.holder is not None and self.activity.signals(session.name).gone

    def asked(self, session: Session) -> None:
        """Note a request that needs the session's bytes."""
        self.activity.asked(session)

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

    def new_cache(self) -> PagedCache:
        """Return an empty cache, whose pages will be this device's."""
        return self._new_cache()

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

    def require_tier(self, tier: Tier) -> None:
        """Raise TierFull where the tier is off."""
        self.swapping.tiers.keeper(tier)

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

    def settle(self, moved: Moved) -> None:
        """End a batch of copies."""
        self.swapping.settle(moved)

    # --- room ------------------------------------------------------------------------------------------------------

    def find(self, wanting: Session, need: int) -> bool:
        """Evict other sessions. Return True when there is room now or waiting for the next change helps."""
        return self.eviction.find(wanting, need)

    def in_quota(self, session: Session, need: int, *, instead: bool = False) -> bool:
        """Return True where the session's person may have `need` more bytes on the device, False where other sessions
        of that person leave for it. Raises OverQuota."""
        return self.eviction.in_quota(session, need, instead=instead)

    def require_given(self, need: int) -> None:
        """Raise UsageError where the arrays of rules and edits would take more than sessions may have on the device."""
        self.quotas.require_given(need, self._most_given)

    @property
    def has_quotas(self) -> bool:
        return self.quotas.heeded

    def drop_copies(self, person: str) -> bool:
        """Drop the copies on the host of what is on the device of a person. Return True where there were any."""
        return self.swapping.drop_copies_of_the_present(lambda session: person_of(session.name) == person)

    def short_of_quota(self, session: Session, need: int) -> int:
        return self.quotas.short(session, need)

    def note_tensors(self, tensors: Iterable[Tensor]) -> None:
        self._storage_table.note(tensors)

    def let_go(self) -> None:
        """Note that tensors were let go of; a later look finds which are gone."""
        self._storage_table.note_freed()

    def accounted(self, session: Session) -> None:
        """Account for the tensors that a slice has made, and give back the rest of the bytes set aside for it."""
        self.stop_room.accounted(session)

    def set_aside_now(self, size: int) -> None:
        """Set `size` bytes aside for the rest of this slice. Raises SlabFull."""
        self.stop_room.set_aside_now(size)

    def put_back(self) -> None:
        self.stop_room.put_back()

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        return self.stop_room.fetched(session, storages)

    def pinned(self, tensors: Iterable[Tensor]) -> AbstractContextManager[list[Storage]]:
        return self.older_stops.pinned(tensors)

    def away(self, tensors: Iterable[Tensor]) -> list[Storage]:
        """Return the storages of these tensors that are not on the device."""
        return self.older_stops.away(tensors)

    def bound(self, session: Session) -> None:
        self.older_stops.bound(session)

    # --- without a request -----------------------------------------------------------------------------------------

    @property
    def has_to_look(self) -> bool:
        """True while some session could be evicted, or evicted ones left memory that is not yet given back."""
        return self.swapping.gives_back or bool(self.swapping.candidates())

    @property
    def due_in(self) -> float:
        """The seconds until a session that announced its return is to be brought back; infinite where there is none."""
        return self.activity.due_in

    def fetch_returning(self) -> None:
        """Begin to bring back the sessions whose announced return is near."""
        self.activity.fetch_returning()

    def relieve(self) -> None:
        """Evict sessions where stops and edits have overdrawn the budget."""
        self.eviction.relieve()

    def rest(self) -> None:
        """Do the work of an idle engine: purge, write through, swap out, give memory back."""
        self._storage_table.purge()
        self.eviction.attend()

    def heed(self, usage: Usage) -> None:
        """Act on a reading of the device's memory in use by other programs."""
        self.external_pressure.heed(usage)

    def statistics(self) -> PrefetchStatistics:
        return self.activity.statistics()
