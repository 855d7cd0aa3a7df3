"""Moves of sessions off the device and back. Decides how a move goes, never which session moves or when.

Each step does what is still missing: a leaving session has its items stored, then frees its place; a returning one has
them loaded, then its queued requests are answered. The end of each batch triggers the next check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.memory.offload.swappable import Item, StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.residency.older_stops import OlderStops
from djinn_jupyter.engine.session.residence import Cause, Swap
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import items_of, own_items_of, storages_of
from djinn_jupyter.engine.system.faults import in_short
from djinn_jupyter.errors import DjinnError, IllegalMove, OverQuota, SlabFull, StorageFailed, TierFull
from djinn_jupyter.wire.nouns import Tier, Transfer
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)


class Swapping:
    """Invariants: a session that runs or is looked at does not leave, unless that work waits for room, nor one that is
    held from outside; it leaves with all its items and comes back with its own (not its older stops); a page or storage
    stays as long as any session on the device has it, except older stops, which leave alone; a copy counts only if
    nothing was written since it was begun; a move that fails leaves the session where it was and does not touch the
    others.

    `changes` counts events that may have freed room or loaded a session; `gives_back`: some left and the engine still
    holds their memory. `swapped` is called at the end of every move; `find_room` is called when the slab is full and
    returns True where waiting helps. `in_owner_budget` is True where the session's owner may have so many bytes more on
    the device, False where that has to be awaited; it raises OverQuota."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        tiers: Tiers,
        storage_table: StorageTable,
        *,
        waiting: Container[Session] = (),
        swapped: Callable[[Session, Transfer | None], None],
        find_room: Callable[[Session, int], bool],
        in_owner_budget: Callable[[Session, int], bool] = lambda session, need: True,
    ) -> None:
        self._sessions, self._waiting = sessions, waiting
        self._swapped, self._find_room, self._in_owner_budget = swapped, find_room, in_owner_budget
        self.tiers, self.storage_table = tiers, storage_table
        self.slabs = slabs
        self.older_stops = OlderStops(sessions, tiers, storage_table)
        self.changes = 0
        self.gives_back = False

    def may_leave(self, session: Session) -> bool:
        """True where the session is on the device and nothing uses its bytes now."""
        here = session.residence
        return here.state == "resident" and not here.busy and session.work is None and session.state != "running"

    def may_give_way(self, session: Session) -> bool:
        """True where the session is on the device and its work, or queued request, only waits for room."""
        here = session.residence
        waits = here.parked or (here.wants_room and session.work is None)
        return here.state == "resident" and waits and not here.busy

    def note_change(self) -> None:
        """Count an event that may have freed room or loaded a session."""
        self.changes += 1

    def candidates(self, wanting: Session | None = None) -> list[Session]:
        """Return the sessions that may leave, except `wanting` and those with queued requests."""
        return [one for one in self._sessions.values() if one is not wanting and self.is_candidate(one)]

    def is_candidate(self, session: Session) -> bool:
        """True where the session may leave and has no queued request."""
        return session.generation is not None and session not in self._waiting and self.may_leave(session)

    def swap_out(self, session: Session, tier: Tier, cause: Cause) -> None:
        """Begin to swap out to a tier. Raises IllegalMove if the session is in use, TierFull if the tier is off."""
        self.tiers.keeper(tier)
        here = session.residence
        runs = session.state == "running" and not here.parked
        if runs or here.busy or here.state in ("storing", "loading") or here.moving:
            why = "running" if runs else "held" if here.busy else here.state
            raise IllegalMove(f"Session {in_quotes(session.name)} is {why} and cannot leave the device now.")
        if here.state == "resident":
            session.cache.flush()
            here.move("leave", session.name)
        elif here.state == "disk" or tier == "host":
            return
        here.begin_move(Swap(goal=tier, cause=cause, items=items_of(session, self.storage_table)))
        self.advance(session)
        session.cache.drop_working()  # while its pages are copied

    def swap_in(self, session: Session, cause: Cause) -> None:
        """Begin to swap in, or stop swapping out; later, where others requested room earlier."""
        here = session.residence
        if cause == "needed":
            here.ask()
        if here.state not in ("host", "disk"):
            if here.state == "storing" and not self.is_behind(session):
                self._call_back(session)
            elif here.waits_for_room:
                self.advance(session)
            return
        wanted = items_of if here.inherited else own_items_of  # from an earlier process: all, to check them
        items = wanted(session, self.storage_table)
        if cause == "needed" and all(item.resident for item in items) and self.is_behind(session):
            return  # forks kept its bytes here: it would come and be sent away again for the earlier one, for ever
        here.move("come", session.name)
        from_disk = any(not item.resident and "host" not in item.copies for item in items)
        here.begin_move(Swap(goal=None, cause=cause, items=items, from_disk=from_disk))
        self.advance(session)

    def begin_anew(self, session: Session) -> None:
        """Drop the session's bytes: it counts as on the device, with none."""
        here = session.residence
        if not here.present:
            here.give_up_move()
            here.move("begin_anew", session.name)

    def push_out(self, need: int, of: Callable[[Session], bool] = lambda session: True) -> int:
        """Evict older stops of the sessions `of` from the device. Return the bytes that left or are on their way."""
        coming, left = self.older_stops.push_out(need, of)
        if left:  # the held bytes do not show it: the check for older stops may have found new storages
            self.changes, self.gives_back = self.changes + 1, True
        return coming

    def write_through(self, session: Session) -> None:
        """Copy items without a copy to the host, if there is room, so that leaving later moves nothing."""
        here = session.residence
        if self.tiers.host is None or not self.may_leave(session) or not here.begin_write_through():
            return
        session.cache.flush()
        try:
            self.tiers.store([item for item in items_of(session, self.storage_table) if item.resident], "host")
        except TierFull as full:
            log.info("Session %r is not written through: %s", session.name, full)

    def settle(self, moved: Moved) -> None:
        """End a batch. An unforeseen error is raised after the moves of the batch have failed with it."""
        self.note_change()
        try:
            size = self.tiers.settle(moved)
        except Exception as error:
            for session in self._sessions.values():
                if session.residence.moving is not None and moved.batch in session.residence.moving.batches:
                    self._fail(session, _unforeseen(session, error))
            raise
        self.gives_back = bool(self.older_stops.settle(moved)) or self.gives_back
        if moved.error is not None:
            log.warning("A move between tiers failed: %s", str(moved.error))  # the error holds its frames' memory
        for session in [s for s in self._sessions.values() if s.residence.moving is not None]:
            moving = session.residence.moving
            if moving is None or moved.batch not in moving.batches:
                continue
            moving.settle(moved.batch, size, moved.seconds)
            if moved.error is not None:
                self._fail(session, moved.error)
        self.advance_all()

    def advance_all(self) -> None:
        """Advance all moves until nothing changes: each end of a move, job or session may end the wait of others."""
        before = None
        while before != self.changes:
            before = self.changes
            for session in sorted(self._sessions.values(), key=lambda one: one.residence.asked_since):
                self.advance(session)

    def sweep(self) -> int:
        """Free device copies referenced only by swapped-out sessions (once also a fork's). Return the bytes freed."""
        self.storage_table.purge()
        away = [s for s in self._sessions.values() if s.residence.state in ("host", "disk")]
        found = {
            id(i): i for s in away for i in items_of(s, self.storage_table) if i.resident and i.copies and not i.moving
        }
        needed = self._needed(away) if found else set()
        going = [item for key, item in found.items() if key not in needed]
        self._leave(going)
        return sum(item.nbytes for item in going)

    def advance(self, session: Session) -> None:
        """Do what can be done now for a session's move. An error ends the move; it is raised unless room is lacking."""
        moving = session.residence.moving
        if moving is None:
            return
        try:
            if moving.goal is None:
                self._bring(session, moving)
            else:
                self._take_away(session, moving, moving.goal)
        except (TierFull, SlabFull, OverQuota) as full:
            self._fail(session, full)
        except Exception as error:
            self._fail(session, _unforeseen(session, error))
            raise

    def _take_away(self, session: Session, moving: Swap, goal: Tier) -> None:
        missing = [item for item in moving.items if _has_to_go(item, goal)]
        if missing:
            self._store(session, moving, [item for item in missing if not item.moving])
            return
        here = session.residence
        if here.state == "storing":
            needed = self._needed([session])
            going = [item for item in moving.items if item.resident and id(item) not in needed]
            if any(item.moving for item in going):
                return
            self._leave(going)
            if moving.cause == "asked":  # a client wants the memory now; otherwise other sessions may want it soon
                self.shrink()
            here.move("reach_host" if goal == "host" else "reach_disk", session.name)
        else:
            here.move("sink", session.name)
        if goal == "disk":
            for item in moving.items:
                if not item.moving:
                    item.drop_copy("host")
        self._end(session, moving)

    def _store(self, session: Session, moving: Swap, items: list[Item]) -> None:
        assert moving.goal is not None
        if not items:
            return
        while True:
            try:
                moving.batches.update(self.tiers.store(items, moving.goal))
                return
            except TierFull:
                if moving.goal == "disk":
                    raise
            if self.drop_copies_of_the_present():
                continue
            if self._somebody_sinks():  # the end of that move triggers the next check
                return
            if self.older_stops.sink(sum(item.nbytes for item in items)):
                return
            if not self._sink_another(session, sum(item.nbytes for item in items)):
                self._store_further_down(session, moving)
                return

    def _somebody_sinks(self) -> bool:
        places = (session.residence for session in self._sessions.values())
        return any(here.state == "host" and here.moving is not None for here in places)

    def _sink_another(self, session: Session, need: int) -> bool:
        """Begin to send the longest unused session of a full host to the disk. False where none has rested longer."""
        if self.tiers.disk is None or self.tiers.host is None or need > self.tiers.host.limit:
            return False
        rested = [
            other
            for other in self._sessions.values()
            if other.residence.state == "host"
            and other.residence.error is None
            and other.residence.touched < session.residence.touched
        ]
        if not rested:
            return False
        self.swap_out(by_last_use(rested)[0], "disk", "pressure")
        return True

    def _store_further_down(self, session: Session, moving: Swap) -> None:
        """Store on the disk because the host is full. Raises TierFull where there is no disk tier."""
        if self.tiers.disk is None:
            raise TierFull(
                f"The host tier has no room for session {in_quotes(session.name)}, and there is no disk tier."
            )
        moving.go_to_disk()
        self._take_away(session, moving, "disk")

    def drop_copies_of_the_present(self, of: Callable[[Session], bool] = lambda session: True) -> bool:
        """Drop host copies of items of the sessions `of` that are on the device. Return True where there were any."""
        dropped = False
        for session in filter(of, self._sessions.values()):
            if session.residence.state == "resident":
                for item in items_of(session, self.storage_table):
                    if "host" in item.copies and item.resident and not item.moving:
                        item.drop_copy("host")
                        dropped = True
        return dropped

    def _bring(self, session: Session, moving: Swap) -> None:
        missing = [item for item in moving.items if not item.resident]
        if missing:
            self._load(session, moving, [item for item in missing if not item.moving])
            return
        session.residence.finish_move(session.name)
        self._end(session, moving)

    def _load(self, session: Session, moving: Swap, items: list[Item]) -> None:
        moving.note_room(True)
        while True:
            before = self.changes
            within = self._in_owner_budget(session, sum(item.nbytes for item in items if not item.placed))
            session.residence.note_over_budget(within)
            if not within and self.changes != before:
                continue
            if not within or (items and self.is_behind(session)):
                moving.note_room(False)
                return
            try:
                moving.batches.update(self.tiers.load(items))
                return
            except SlabFull:
                if not self._find_room(session, sum(item.nbytes for item in items)):
                    raise
                if self.changes == before:
                    moving.note_room(False)
                    return

    def is_behind(self, session: Session) -> bool:
        """True where another session waits for room with an earlier request: it would be overtaken for ever."""
        since = session.residence.asked_since
        return any(one.residence.is_short and one.residence.asked_since < since for one in self._sessions.values())

    def _end(self, session: Session, moving: Swap) -> None:
        transfer = moving.transfer()
        session.residence.end_move(transfer)
        self.note_change()
        self._swapped(session, transfer)

    def _call_back(self, session: Session) -> None:
        """Stop swapping out before anything has left; running copies continue as if written through."""
        session.residence.give_up_move()
        session.residence.move("call_back", session.name)
        self.note_change()
        self._swapped(session, None)

    def _fail(self, session: Session, error: DjinnError) -> None:
        """End the move with an error; the session goes back to the state before it."""
        here = session.residence
        moving = here.fail_move(error)
        if here.state == "storing":
            here.move("call_back", session.name)
        elif here.state == "loading":
            assert moving is not None
            if isinstance(error, StorageFailed) and here.inherited:
                self._do_without_rows(session, moving)
                return
            here.move("reach_disk" if moving.from_disk else "reach_host", session.name)
        self.note_change()
        self._swapped(session, None)

    def _do_without_rows(self, session: Session, moving: Swap) -> None:
        """Bring the session in without the unreadable rows of an earlier process on disk, and recompute them."""
        here = session.residence
        log.warning("Session %r is made again from its tokens: %s", session.name, str(here.error))
        session.lose_rows()
        moving.take_items(storages_of(session, self.storage_table).own)
        here.go_on_with(moving)
        self.note_change()
        self.advance(session)

    def _needed(self, leaving: Sequence[Session]) -> set[int]:
        """Return the identities of the items of sessions that are on the device and not in `leaving`."""
        others = [s for s in self._sessions.values() if s not in leaving and s.residence.state not in ("host", "disk")]
        return {id(item) for session in others for item in items_of(session, self.storage_table)}

    def _leave(self, items: Sequence[Item]) -> None:
        self.gives_back = self.gives_back or bool(items)
        for item in items:
            item.leave()

    def shrink(self) -> int:
        """Compact the slabs and release memory that no page needs. Return the bytes released."""
        self.gives_back = False
        for slab in self.slabs:
            slab.compact()
        return sum(slab.shrink() for slab in self.slabs)


def _has_to_go(item: Item, goal: Tier) -> bool:
    """True where a session that leaves for that tier waits for a copy of the item. Older stops may be further down."""
    return goal not in item.copies and (item.resident or item.moving or goal == "disk")


def _unforeseen(session: Session, error: Exception) -> DjinnError:
    """Return the error for requests that wait for the session."""
    return DjinnError(
        f"Session {in_quotes(session.name)} could not be moved: the engine met an error it does not know "
        f"({in_short(error)}); see %djinn_log."
    )


BEFORE: Final[dict[Tier, float]] = {"host": 8e9, "disk": 1e9}  # bytes/s, assumed before the first move
WEIGHED: Final = 64 << 20  # bytes: the weight of that guess
MEMORY: Final = 0.9  # factor on past moves, at each move


class Bandwidth:
    """Bytes and seconds of the moves from each tier, older ones weighted less. A move's seconds include its wait for
    room, because a returning session would wait too."""

    def __init__(self) -> None:
        self._moved = {tier: (float(WEIGHED), WEIGHED / rate) for tier, rate in BEFORE.items()}

    def learn(self, transfer: Transfer) -> None:
        if transfer.direction == "in" and transfer.bytes_moved:
            size, seconds = self._moved[transfer.tier]
            self._moved[transfer.tier] = (MEMORY * size + transfer.bytes_moved, MEMORY * seconds + transfer.seconds)

    def seconds(self, tier: Tier, size: int) -> float:
        """Return the seconds for `size` bytes from `tier` to the device."""
        moved, taken = self._moved[tier]
        return size * taken / moved
