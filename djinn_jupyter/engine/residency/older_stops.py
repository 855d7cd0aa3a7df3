"""Storages that only going back reads: stops other than the present one, and the states kept on the way. They are
evicted before any session, and fetched when a session goes back. Decides how they move, never when.

Engine's thread only. `settle` reports batches that ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from djinn_jupyter.engine.memory.offload.mover import Batch, Moved
from djinn_jupyter.engine.memory.offload.storages import Blob, Blobs
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.session.footprint import storages_of, tensors_of_stop
from djinn_jupyter.engine.session.history import StopRecord
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.errors import DjinnError, SlabFull, TierFull
from djinn_jupyter.wire.nouns import Tier

log = logging.getLogger(__name__)


class OlderStops:
    """Invariants: the own storages of sessions on the device, and pinned ones, are not evicted here; a storage gives up
    its place only once a tier has a copy of it; a stop on the disk keeps nothing on device or host, unless a session
    went back to it. `_going` are storages on their way, with their goal tier."""

    def __init__(self, sessions: Mapping[str, Session], tiers: Tiers, blobs: Blobs) -> None:
        self._sessions, self._tiers, self._blobs = sessions, tiers, blobs
        self._going: dict[int, tuple[Blob, Tier]] = {}
        self._pinned: Counter[int] = Counter()
        self._loading: set[Batch] = set()
        self._failed: dict[Batch, DjinnError] = {}
        self._unwritten: dict[Blob, DjinnError] = {}

    # -------------------------------------------------------------------------------------------- leaving

    def push_out(self, need: int) -> int:
        """Evict `need` bytes from the device, the longest unused session's first. Return the bytes that have left or
        are on their way. Storages with a copy leave at once."""
        coming = sum(blob.counted for blob, _ in self._going.values())
        chosen: list[Blob] = []
        for blob in self._may_leave() if coming < need else ():
            chosen.append(blob)
            coming += blob.counted
            if coming >= need:
                break
        for blob in chosen:
            if blob.copies:
                blob.leave()
        rest = [blob for blob in chosen if blob.resident]
        return coming if self._begin(rest) else coming - sum(blob.counted for blob in rest)

    def sink(self, need: int) -> bool:
        """Send `need` bytes that lie on the host alone on to the disk. Return True where any go."""
        chosen: list[Blob] = []
        for session in by_last_use(self._sessions.values()):
            if session.residence.present:
                chosen += [b for b in storages_of(session, self._blobs).past if self._lies_on_host_alone(b)]
            if sum(blob.nbytes for blob in chosen) >= need:
                break
        return bool(chosen) and self._store(chosen, "disk")

    def _lies_on_host_alone(self, blob: Blob) -> bool:
        away = not blob.resident and not blob.moving
        return away and "disk" not in blob.copies and blob not in self._unwritten

    def _begin(self, blobs: Sequence[Blob]) -> bool:
        """Copy to the first tier that has room. Return False where none has."""
        return not blobs or any(self._store(blobs, tier) for tier in self._tiers.names)

    def _store(self, blobs: Sequence[Blob], tier: Tier) -> bool:
        try:
            self._tiers.store(blobs, tier)
        except TierFull as full:
            log.info("Older stops stay where they are: %s", full)
            return False
        self._going.update((blob.identity, (blob, tier)) for blob in blobs)
        return True

    def _may_leave(self) -> Iterator[Blob]:
        met = self._in_use() | set(self._going)
        for session in by_last_use(self._sessions.values()):
            for blob in storages_of(session, self._blobs).past:
                if blob.resident and not blob.moving and blob.identity not in met and blob not in self._unwritten:
                    met.add(blob.identity)
                    yield blob

    def _in_use(self) -> set[int]:
        """Return the identities of storages that must stay."""
        here = (s for s in self._sessions.values() if s.residence.state not in ("host", "disk"))
        own = {blob.identity for session in here for blob in storages_of(session, self._blobs).own}
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
        ended = [key for key, (blob, _) in self._going.items() if not blob.moving]
        in_use, freed = self._in_use() if ended else set(), 0
        for key in ended:
            blob, tier = self._going.pop(key)
            if blob.expired:
                continue
            if tier not in blob.copies:
                self._again(blob, tier, error)
                continue
            if blob.resident and key not in in_use:
                freed += blob.counted
                blob.leave()
            if tier == "disk" and not blob.resident:
                blob.drop_copy("host")
        return freed

    def _again(self, blob: Blob, tier: Tier, error: DjinnError | None) -> None:
        """Store again on the disk a storage that was on another move; one whose copy failed is not tried again before
        its session has another stop."""
        if error is not None or (tier == "disk" and not self._store([blob], "disk")):
            self._unwritten[blob] = error or TierFull("The disk tier is full.")

    # -------------------------------------------------------------------------------------------- coming back

    @contextmanager
    def pinned(self, tensors: Iterable[Tensor]) -> Iterator[list[Blob]]:
        """Pin the storages of these tensors: they stay on the device, or are loaded without being evicted again."""
        found = {blob.identity: blob for tensor in tensors if (blob := self._blobs.of(tensor)) is not None}
        self._pinned.update(found.keys())
        try:
            yield list(found.values())
        finally:
            self._pinned.subtract(found.keys())
            self._pinned += Counter()

    def away(self, tensors: Iterable[Tensor]) -> list[Blob]:
        """Return the storages of these tensors that are not on the device."""
        found = {blob.identity: blob for tensor in tensors if (blob := self._blobs.of(tensor)) is not None}
        return [blob for blob in found.values() if not blob.resident]

    def fetch(
        self, blobs: Sequence[Blob], wait_for: Callable[[int], Blocked | None]
    ) -> Generator[Blocked | None, None, None]:
        """Run steps until pinned storages are on the device. `wait_for` finds room for so many bytes, or returns None
        where there is none. Raises SlabFull, and StorageFailed where a copy could not be read."""
        while missing := [blob for blob in blobs if not blob.resident]:
            try:
                batches = self._tiers.load(missing)
            except SlabFull:
                blocked = wait_for(sum(blob.nbytes for blob in missing))
                if blocked is None:
                    raise
                yield blocked
                continue
            self._loading.update(batches)
            yield lambda missing=missing: any(blob.moving for blob in missing)  # type: ignore[misc]
            for batch in batches:
                if batch in self._failed:
                    raise self._failed.pop(batch)

    # -------------------------------------------------------------------------------------------- to the disk

    def bound(self, session: Session) -> None:
        """Send the stops beyond those that the session keeps in memory to the disk. Where the disk is off or full, or a
        write to it failed, the oldest are dropped, and the history says why. A stop that finds the disk full while
        others are being written to it waits for them: dropping one of those would free no place yet. The stop that the
        session stands at is not dropped."""
        history = session.history
        self._drop_unwritten(session)
        while history.beyond:
            try:
                self._send_to_disk(history.stops[history.on_disk])
            except TierFull as full:
                if history.present == 0 or any(blob.moving and tier == "disk" for blob, tier in self._going.values()):
                    return
                history.drop_oldest(str(full))
                self._blobs.purge()
            else:
                history.note_on_disk()

    def _send_to_disk(self, stop: StopRecord) -> None:
        """Store the stop's storages on the disk, those on their way to the host once they are there. Raises TierFull,
        also where the latter would find no room by then."""
        in_use = self._in_use()
        blobs = [blob for blob in self.of(stop) if blob.identity not in in_use]
        self._require_room_on_disk([blob for blob in blobs if blob.moving])
        self._tiers.store(blobs, "disk")
        self._going.update((blob.identity, (blob, "disk")) for blob in blobs)
        self._end(None)

    def _require_room_on_disk(self, moving: Sequence[Blob]) -> None:
        """Raise TierFull where the disk has no room for the storages of these that move elsewhere."""
        disk = self._tiers.keeper("disk")
        elsewhere = [
            b for b in moving if "disk" not in b.copies and self._going.get(b.identity, (b, "host"))[1] != "disk"
        ]
        for place in disk.allocate([blob.nbytes for blob in elsewhere]):
            disk.free(place)

    def _drop_unwritten(self, session: Session) -> None:
        """Drop the stops that could not be written, as they may not stay in memory. Other storages may be tried
        again."""
        if not self._unwritten:
            return
        for stop in session.history.stops[: session.history.on_disk]:
            if reasons := [str(self._unwritten[blob]) for blob in self.of(stop) if blob in self._unwritten]:
                session.history.drop_through(stop, reasons[0])
        tried = storages_of(session, self._blobs).past
        left = self._unwritten.items()
        self._unwritten = {blob: why for blob, why in left if not blob.expired and blob not in tried}

    def of(self, stop: StopRecord) -> list[Blob]:
        """Return the stop's storages, each once."""
        found = {blob.identity: blob for t in tensors_of_stop(stop) if (blob := self._blobs.of(t)) is not None}
        return list(found.values())
