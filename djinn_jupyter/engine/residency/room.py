"""Device memory for everything that a session's work keeps there: pages, stops, states, columns, results, added
modules.

Every demand is met in this order: unused memory and working copies go, older stops leave, then idle sessions, then
sessions whose own work waits for room and was begun later. Waiting work gives its place to earlier work and returns
when there is room again. So the oldest work always continues, and work that fits alone does not fail beside others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.swappable import Storage
from djinn_jupyter.engine.passes.controller import Admit
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.residence import Blocked, Pieces
from djinn_jupyter.engine.session.session import Session, copies_on_device
from djinn_jupyter.engine.session.table import own_tensors, tensors_of_states
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.units import spell_bytes

NO_TIER: Final = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."
Result = TypeVar("Result")


class PassRoom:
    """Bytes set aside for the tensors that one entry into a pass leaves: `always` for those of every pass, `expected`
    for those of a pass that stops, until it is known to keep more. `refused`: the last request for bytes failed;
    `keeps_more`: the pass was entered with room for less than it is now known to keep."""

    def __init__(self, budget: Budget, owner: object, always: int, expected: int) -> None:
        self._budget, self._owner, self._always = budget, owner, always
        self.need, self.refused = always + expected, False
        self._entered_with = self.need

    def open(self) -> None:
        """Set the bytes aside. Raises SlabFull."""
        self.refused, self._entered_with = True, self.need
        self._budget.set_aside(self.need, by=None)
        self.refused = False

    @property
    def keeps_more(self) -> bool:
        return self.need > self._entered_with

    def admit(self, kept: int) -> None:
        """Let a pass keep `kept` bytes when it is left. The working copy that it reads stays. Raises SlabFull."""
        self.need, self.refused = max(self.need, self._always + kept), True
        self._budget.set_aside(self._always + kept, by=self._owner)
        self.refused = False


class StopRoom:
    def __init__(self, budget: Budget, swapping: Swapping, eviction: Eviction) -> None:
        self._budget, self._swapping, self._eviction = budget, swapping, eviction

    def entered(
        self,
        session: Session,
        cache: PagedCache,
        pages: Callable[[], int],
        enter: Callable[[Admit], Result],
        *,
        always: int,
        expected: int,
    ) -> Generator[Blocked | None, None, Result]:
        room = PassRoom(self._budget, cache.owner, always, expected)

        def attempt() -> Result:
            room.open()
            return enter(room.admit)

        while True:
            try:
                return (yield from self.with_room(session, lambda: room.need + pages(), attempt, of_owner_budget=pages))
            except SlabFull:
                if not room.refused:
                    raise
            if not room.keeps_more:  # otherwise its working copy yields at the next entry
                self._drop_a_stop(session, room.need)
            yield None

    def _drop_a_stop(self, session: Session, need: int) -> None:
        """Drop the session's oldest stop. Raises SlabFull where there is none to drop."""
        history = session.history
        if not history.stops or history.present == 0:
            pages = session.cache.statistics()
            raise SlabFull(
                f"The stop keeps {spell_bytes(need)} on the device beside {spell_bytes(pages.page_bytes)} of pages, "
                f"{self._budget.bound}"
            )
        history.drop_oldest(NO_TIER)
        self._swapping.storage_table.purge()

    def accounted(self, session: Session) -> None:
        """Account for the tensors of a slice, and return the rest of the bytes set aside for it."""
        states = tensors_of_states(session.cache.live_states())
        self._swapping.storage_table.note(chain(own_tensors(session), states, copies_on_device(session)))
        self.put_back()

    def put_back(self) -> None:
        """Release all bytes that are set aside."""
        self._budget.put_back()

    def set_aside_now(self, size: int) -> None:
        """Set `size` bytes aside for the rest of this slice. Raises SlabFull."""
        self._budget.set_aside(size, by=None)

    def with_room(
        self,
        session: Session,
        need: Callable[[], int],
        attempt: Callable[[], Result],
        *,
        of_owner_budget: Callable[[], int] = lambda: 0,
    ) -> Generator[Blocked | None, None, Result]:
        """Call `attempt` until it finds room; return its result. Between calls others free room for `need` bytes, and
        the session itself may leave the device and return. `of_owner_budget` are the bytes that its person has to be
        allowed first. Raises SlabFull where no room can be freed, OverQuota, and errors of returning."""
        try:
            while True:
                before = self._swapping.changes
                within = self._eviction.in_owner_budget(session, of_owner_budget())
                session.residence.note_over_budget(within)
                if within:
                    try:
                        return attempt()
                    except SlabFull:
                        self.put_back()
                        if not self._eviction.find(session, need()):
                            raise
                if session.residence.park():
                    self._swapping.note_change()  # earlier work may have this session's place
                    before += 1
                yield from self._change(session, before)
                yield from self._back(session)
        finally:
            self._unpark(session)

    def behind_earlier(self, session: Session) -> Pieces:
        """Run steps of yielding work until no earlier work waits for room or has reserved some."""
        session.residence.park()
        self._swapping.note_change()  # the returned bytes are there
        try:
            while self._eviction.earlier_has_room(session):
                yield from self._change(session, self._swapping.changes)
            yield from self._back(session)
        finally:
            self._unpark(session)

    def _unpark(self, session: Session) -> None:
        if session.residence.unpark():
            self._swapping.note_change()  # later requests may have room now

    def _change(self, session: Session, before: int) -> Pieces:
        """Wait for the next change. Raises GaveWay where earlier work has requested the session's reservation."""
        session.residence.require_unasked()  # it may have been requested during a move
        yield lambda: self._swapping.changes == before
        session.residence.require_unasked()

    def _back(self, session: Session) -> Pieces:
        """Run steps until the session, which may have left while its work waited, is on the device. It returns once no
        earlier work waits for room, which would otherwise make it leave again."""
        here = session.residence
        while not here.present:
            if not here.settled:
                yield lambda: not here.settled
            elif self._eviction.earlier_waits(session):
                yield from self._change(session, self._swapping.changes)
            else:
                self._swapping.swap_in(session, "needed")
                yield lambda: not here.settled
                if not here.present and here.error is not None:
                    raise here.error

    def set_aside(self, session: Session, size: int, *, of_owner_budget: int = 0) -> Pieces:
        yield from self.with_room(
            session, lambda: size, lambda: self.set_aside_now(size), of_owner_budget=lambda: of_owner_budget
        )

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        """Run steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
        older = self._swapping.older_stops

        def need() -> int:
            return sum(storage.nbytes for storage in storages if not storage.resident)

        while need():
            batches = yield from self.with_room(session, need, lambda: older.load(storages))
            yield lambda: any(storage.moving for storage in storages)
            older.require_loaded(batches)


# Other programs on the device: when they need memory and little is left, sessions are evicted for them. Each reading
# of the device leads to one action: first unused memory is given back; where the next reading shows that was not
# enough, sessions are evicted; then the memory they left is given back, and so on.

HEADROOM: Final = 20  # a twentieth of the device is to be free when other programs have grown


class ExternalPressure:
    """Only memory that other programs took since the engine's start counts as their need: an engine that was allowed
    nearly all of the device does not evict its sessions for want of headroom."""

    def __init__(self, sessions: Mapping[str, Session], eviction: Eviction, swapping: Swapping, begun: Usage) -> None:
        self._sessions, self._eviction, self._swapping = sessions, eviction, swapping
        self._last = begun
        self._least = begun.other_bytes or 0
        self._gave_back = False

    def apply(self, usage: Usage) -> None:
        """Act on a reading, once."""
        if usage is self._last or usage.other_bytes is None:
            return
        self._last, self._least = usage, min(self._least, usage.other_bytes)
        need = min(_short(usage), usage.other_bytes - self._least)
        if need <= 0:
            self._gave_back = False
        elif self._gave_back:
            self._eviction.clear(need)
            self._gave_back = False
        else:
            self._give_back()

    def _give_back(self) -> None:
        for session in self._sessions.values():
            if session.work is None:
                session.cache.drop_working()
        self._swapping.shrink()
        self._gave_back = True


def _short(usage: Usage) -> int:
    """Return the bytes missing for the headroom; 0 or less where none are."""
    if usage.device_total is None or usage.device_in_use is None:
        return 0
    return usage.device_total // HEADROOM - (usage.device_total - usage.device_in_use)
