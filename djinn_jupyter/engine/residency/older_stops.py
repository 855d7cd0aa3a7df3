"""Storages that only going back reads: stops other than the present one, and the states of past lengths. They are
evicted before any session, and fetched when a session goes back. Decides how they move, never when.

Engine's thread only. `settle` reports batches that ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from djinn_jupyter.engine.memory.offload.mover import Moved, MoverBatch
from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.session.history import MOST_STOPS, StopRecord
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import each_once, storages_of, tensors_of_stop
from djinn_jupyter.errors import DjinnError, TierFull
from djinn_jupyter.wire.nouns import Tier

log = logging.getLogger(__name__)


class OlderStops:
    """Invariants: the own storages of sessions on the device, and pinned ones, are not evicted here; a storage gives up
    its place only once a tier has a copy of it; a stop on the disk keeps nothing on device or host, unless a session
    went back to it. `_going` are storages on their way, with their goal tier."""

    def __init__(self, sessions: Mapping[str, Session], tiers: Tiers, storage_table: StorageTable) -> None:
        self._sessions, self._tiers, self._storage_table = sessions, tiers, storage_table
        self._going: dict[int, tuple[Storage, Tier]] = {}
        self._pinned: Counter[int] = Counter()
        self._loading: set[MoverBatch] = set()
        self._failed: dict[MoverBatch, DjinnError] = {}
        self._unwritten: dict[Storage, DjinnError] = {}

    def push_out(self, need: int, of: Callable[[Session], bool] = lambda session: True) -> tuple[int, bool]:
        """Evict `need` bytes of the sessions `of` from the device, the longest unused session's first. Return the bytes
        that have left or are on their way, and True where some have left: storages with a copy leave at once."""
        coming = sum(storage.counted for storage, _ in self._going.values())
        chosen: list[Storage] = []
        for storage in self._may_leave(of) if coming < need else ():
            chosen.append(storage)
            coming += storage.counted
            if coming >= need:
                break
        for storage in chosen:
            if storage.copies:
                storage.leave()
        rest = [storage for storage in chosen if storage.resident]
        if not self._begin(rest):
            coming -= sum(storage.counted for storage in rest)
        return coming, len(rest) < len(chosen)

    def sink(self, need: int) -> bool:
        """Send `need` bytes that lie only on the host on to the disk. Return True where any go."""
        chosen: list[Storage] = []
        for session in by_last_use(self._sessions.values()):
            if session.residence.present:
                chosen += [b for b in storages_of(session, self._storage_table).past if self._lies_on_host_alone(b)]
            if sum(storage.nbytes for storage in chosen) >= need:
                break
        return bool(chosen) and self._store(chosen, "disk")

    def _lies_on_host_alone(self, storage: Storage) -> bool:
        away = not storage.resident and not storage.moving
        return away and "disk" not in storage.copies and storage not in self._unwritten

    def _begin(self, storages: Sequence[Storage]) -> bool:
        """Copy to the first tier that has room. Return False where none has."""
        return not storages or any(self._store(storages, tier) for tier in self._tiers.names)

    def _store(self, storages: Sequence[Storage], tier: Tier) -> bool:
        try:
            self._tiers.store(storages, tier)
        except TierFull as full:
            log.info("Older stops stay where they are: %s", full)
            return False
        self._going.update((storage.identity, (storage, tier)) for storage in storages)
        return True

    def _may_leave(self, of: Callable[[Session], bool] = lambda session: True) -> Iterator[Storage]:
        met = self._in_use() | set(self._going)
        for session in by_last_use(filter(of, self._sessions.values())):
            for storage in storages_of(session, self._storage_table).past:
                if (
                    storage.resident
                    and not storage.moving
                    and storage.identity not in met
                    and storage not in self._unwritten
                ):
                    met.add(storage.identity)
                    yield storage

    def _in_use(self) -> set[int]:
        """Return the identities of storages that must stay."""
        here = (s for s in self._sessions.values() if s.residence.state not in ("host", "disk"))
        own = {storage.identity for session in here for storage in storages_of(session, self._storage_table).own}
        return own | self._pinned.keys()

    def settle(self, moved: Moved) -> int:
        """End a batch: storages that now have their copy leave. Return the bytes freed on the device."""
        if moved.batch in self._loading:
            self._loading.discard(moved.batch)
            self._failed.update({} if moved.error is None else {moved.batch: moved.error})
        freed = self._end(moved.error)
        for session in self._sessions.values():
            if session.history.beyond and session.work is None:  # a job may be going back to the oldest
                self.bound(session)
        return freed

    def _end(self, error: DjinnError | None) -> int:
        ended = [key for key, (storage, _) in self._going.items() if not storage.moving]
        in_use, freed = self._in_use() if ended else set(), 0
        for key in ended:
            storage, tier = self._going.pop(key)
            if storage.expired:
                continue
            if tier not in storage.copies:
                self._again(storage, tier, error)
                continue
            if storage.resident and key not in in_use:
                freed += storage.counted
                storage.leave()
            if tier == "disk" and not storage.resident:
                storage.drop_copy("host")
        return freed

    def _again(self, storage: Storage, tier: Tier, error: DjinnError | None) -> None:
        """Store again on the disk a storage that was on another move; one whose copy failed is not retried before its
        session has another stop."""
        if error is not None or (tier == "disk" and not self._store([storage], "disk")):
            self._unwritten[storage] = error or TierFull("The disk tier is full.")

    @contextmanager
    def pinned(self, tensors: Iterable[Tensor]) -> Iterator[list[Storage]]:
        """Pin the storages of these tensors: they stay on the device, or are loaded without being evicted again."""
        found = each_once(self._storage_table, tensors)
        self._pinned.update(found.keys())
        try:
            yield list(found.values())
        finally:
            self._pinned.subtract(found.keys())
            self._pinned += Counter()

    def away(self, tensors: Iterable[Tensor]) -> list[Storage]:
        """Return the storages of these tensors that are not on the device."""
        found = each_once(self._storage_table, tensors)
        return [storage for storage in found.values() if not storage.resident]

    def load(self, storages: Sequence[Storage]) -> list[MoverBatch]:
        """Begin to load the absent ones of pinned storages; return the batches. Raises SlabFull."""
        batches = self._tiers.load([storage for storage in storages if not storage.resident])
        self._loading.update(batches)
        return batches

    def require_loaded(self, batches: Iterable[MoverBatch]) -> None:
        """Raise StorageFailed where a copy was unreadable in one of these batches, which have ended."""
        for batch in batches:
            if batch in self._failed:
                raise self._failed.pop(batch)

    def bound(self, session: Session) -> None:
        """Send the stops beyond those that the session keeps in memory to the disk. Where the disk is off or full, or a
        write to it failed, the oldest are dropped, and the history says why. A stop that finds the disk full while
        others are being written to it waits for them: dropping one of those would free no place yet. The present stop
        is not dropped."""
        history = session.history
        self._drop_unwritten(session)
        while history.too_many:
            history.drop_oldest(f"A session has at most {MOST_STOPS:,} stops.")
            self._storage_table.purge()
        while history.beyond:
            try:
                self._send_to_disk(history.stops[history.on_disk])
            except TierFull as full:
                if history.present == 0 or any(
                    storage.moving and tier == "disk" for storage, tier in self._going.values()
                ):
                    return
                history.drop_oldest(str(full))
                self._storage_table.purge()
            else:
                history.note_on_disk()

    def _send_to_disk(self, stop: StopRecord) -> None:
        """Store the stop's storages on the disk, those on their way to the host once they are there. Raises TierFull,
        also where those would find no room by then."""
        in_use = self._in_use()
        storages = [storage for storage in self.of(stop) if storage.identity not in in_use]
        self._require_room_on_disk([storage for storage in storages if storage.moving])
        self._tiers.store(storages, "disk")
        self._going.update((storage.identity, (storage, "disk")) for storage in storages)
        self._end(None)

    def _require_room_on_disk(self, moving: Sequence[Storage]) -> None:
        """Raise TierFull where the disk has no room for the storages of these that move elsewhere."""
        disk = self._tiers.keeper("disk")
        elsewhere = [
            b for b in moving if "disk" not in b.copies and self._going.get(b.identity, (b, "host"))[1] != "disk"
        ]
        for place in disk.allocate([storage.nbytes for storage in elsewhere]):
            disk.free(place)

    def _drop_unwritten(self, session: Session) -> None:
        """Drop the stops that could not be written, as they may not stay in memory. Other storages are retried."""
        if not self._unwritten:
            return
        for stop in session.history.stops[: session.history.on_disk]:
            if reasons := [str(self._unwritten[storage]) for storage in self.of(stop) if storage in self._unwritten]:
                session.history.drop_through(stop, reasons[0])
        tried = storages_of(session, self._storage_table).past
        left = self._unwritten.items()
        self._unwritten = {storage: why for storage, why in left if not storage.expired and storage not in tried}

    def of(self, stop: StopRecord) -> list[Storage]:
        """Return the stop's storages, each once."""
        return list(each_once(self._storage_table, tensors_of_stop(stop)).values())
