"""The engine's accounting of memory as a whole: slabs, page tables, tiers and storages must agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.invariants import check_invariants
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.parallel.ranks import Ranks
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.device import require_alive
from djinn_jupyter.engine.system.faults import Faults, broken, lost

CHECKS_TAKE_ONE_IN: Final = 50  # parts of the engine's time: thousands of pages take milliseconds to check


class Accounting:
    def __init__(
        self,
        sessions: SessionTable,
        slabs: Sequence[Slab],
        tiers: Tiers,
        storage_table: StorageTable,
        faults: Faults,
        of_no_session: Callable[[], Iterable[PagedCache]],
        ranks: Ranks | None = None,
    ) -> None:
        self._sessions, self._slabs, self._tiers = sessions, slabs, tiers
        self._of_no_session, self._ranks = of_no_session, ranks
        self._storage_table, self._faults = storage_table, faults
        self._due = 0.0

    def check(self, contents: bool = False) -> None:
        """Raise InvariantError unless all agree; with `contents`, compare working copies too."""
        caches = [*(session.cache for session in self._sessions.values()), *self._of_no_session()]
        check_invariants(self._slabs, caches, contents, tiers=self._tiers, storages=self._storage_table)

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
        """Check where the checks before have taken no more than their part of the time. An error is a fault."""
        begun = time.monotonic()
        if begun < self._due:
            return
        with self._faults.during("it checked the accounting"):
            self.check()
        self._due = begun + CHECKS_TAKE_ONE_IN * (time.monotonic() - begun)
