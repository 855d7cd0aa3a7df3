"""Room for the tensors that passes leave on the device: set aside before a pass is entered, requested before anything
is kept, given back once the accounting has the tensors. Waits, and raises where waiting is no use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.offload.storages import Storage
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.footprint import own_tensors
from djinn_jupyter.engine.session.pass_allowance import PassRoom
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces
from djinn_jupyter.errors import SlabFull

NO_TIER: Final = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."


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

    def set_aside(self, session: Session, size: int) -> Pieces:
        """Run steps until `size` bytes are set aside for the rest of this slice. Raises SlabFull."""
        while True:
            try:
                self.set_aside_now(size)
                return
            except SlabFull:
                blocked = self._eviction.wait_for(session, size)
                if blocked is None:
                    raise
            yield blocked

    def within_quota(self, session: Session, need: int) -> Pieces:
        """Run steps until the session's person may have `need` more bytes on the device. Raises OverQuota."""
        while True:
            before = self._swapping.changes
            if self._eviction.in_quota(session, need):
                return
            yield lambda before=before: self._swapping.changes == before  # type: ignore[misc]

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        """Run steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
        older = self._swapping.older_stops
        return older.fetch(storages, lambda need: self._eviction.wait_for(session, need))
