"""Room on the device for whatever a session's work keeps there: pages, stops, states, columns, results, what is added.

Every demand is met in this order: unused memory and working copies go, older stops leave, then idle sessions, then
sessions whose own work waits for room and was begun later. What waits gives its place to what was begun before it and
comes back when there is room again, so the oldest work always goes on, and what fits alone does not fail beside others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.offload.storages import Storage
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.footprint import own_tensors
from djinn_jupyter.engine.session.pass_allowance import PassRoom
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces
from djinn_jupyter.errors import SlabFull

NO_TIER: Final = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."
Result = TypeVar("Result")


class StopRoom:
    def __init__(self, budget: Budget, swapping: Swapping, eviction: Eviction) -> None:
        self._budget, self._swapping, self._eviction = budget, swapping, eviction

    def pass_room(self, owner: object, *, always: int, expected: int) -> PassRoom:
        return PassRoom(self._budget, owner, always, expected)

    def drop_a_stop(self, session: Session, need: int) -> None:
        """Drop the session's oldest stop. Raises SlabFull where there is none to drop."""
        history = session.history
        if not history.stops or history.present == 0:
            raise SlabFull(f"The stop keeps {spell_bytes(need)} on the device, {self._budget.bound}")
        history.drop_oldest(NO_TIER)
        self._swapping.storage_table.purge()

    def accounted(self, session: Session) -> None:
        """Account for the tensors that a slice has made, and give back the rest of the bytes set aside for it."""
        storage_table = self._swapping.storage_table
        storage_table.note(own_tensors(session))
        for state in session.cache.live_states().values():
            storage_table.note(state.tensors())
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
        of_quota: Callable[[], int] = lambda: 0,
    ) -> Generator[Blocked | None, None, Result]:
        """Call `attempt` until it finds room; return its result. Between calls others make room for `need` bytes, and
        the session itself may leave the device and come back. `of_quota` are the bytes that its person has to be
        allowed first. Raises SlabFull where no room can be made, OverQuota, and errors of coming back."""
        try:
            while True:
                before = self._swapping.changes
                if not self._eviction.has_quotas or self._eviction.in_quota(session, of_quota()):
                    try:
                        return attempt()
                    except SlabFull:
                        self.put_back()
                        if not self._eviction.find(session, need()):
                            raise
                if session.residence.park():
                    self._swapping.note_change()  # work that was begun earlier may have this session's place
                    before += 1
                yield lambda before=before: self._swapping.changes == before  # type: ignore[misc]
                yield from self._back(session)
        finally:
            session.residence.unpark()

    def _back(self, session: Session) -> Pieces:
        """Run steps until the session, which may have left while its work waited, is on the device. It comes back once
        no earlier work waits for room, which else would make it leave again."""
        here = session.residence
        while not here.present:
            before = self._swapping.changes
            if not here.settled:
                yield lambda: not here.settled
            elif self._eviction.earlier_waits(session):
                yield lambda before=before: self._swapping.changes == before  # type: ignore[misc]
            else:
                self._swapping.swap_in(session, "needed")
                yield lambda: not here.settled
                if not here.present and here.error is not None:
                    raise here.error

    def set_aside(self, session: Session, size: int) -> Pieces:
        """Run steps until `size` bytes are set aside for the rest of this slice. Raises SlabFull."""
        yield from self.with_room(session, lambda: size, lambda: self.set_aside_now(size))

    def within_quota(self, session: Session, need: int) -> Pieces:
        """Run steps until the session's person may have `need` more bytes on the device. Raises OverQuota."""
        yield from self.with_room(session, lambda: need, lambda: None, of_quota=lambda: need)

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        """Run steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
        older = self._swapping.older_stops

        def need() -> int:
            return sum(storage.nbytes for storage in storages if not storage.resident)

        while need():
            batches = yield from self.with_room(session, need, lambda: older.load(storages))
            yield lambda: any(storage.moving for storage in storages)
            older.require_loaded(batches)
