"""Copy items to and from the tiers: places, moves, and the accounting of both. Knows no session and decides nothing.

Engine's thread only; the mover alone touches bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from djinn_jupyter.engine.memory.offload.disk import STAGING_BYTES, DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.memory.offload.host import HostPlace, HostTier
from djinn_jupyter.engine.memory.offload.mover import Copy, Moved, Mover, MoverBatch, MoverTask, Read, Write
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.device import event_on
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull, TierFull
from djinn_jupyter.wire.nouns import Tier, TierStatistics

BATCH_BYTES: Final = 32 << 20  # the most bytes that a load waits for when it is queued behind a store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Store:
    """A copy of an item, in its `version`, to a place."""

    item: Item
    tier: Tier
    version: int
    place: HostPlace | DiskPlace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    item: Item
    tier: Tier


class Tiers:
    """The host tier and the disk tier, either of which may be absent.

    Invariants: an item has at most one move under way; a completed store counts only if the item's version is still the
    one it had when the store began; a place belongs to a copy, or to a store under way, or is free. A verb that raises
    has changed nothing. A failed batch has cost only time.
    """

    def __init__(self, host: HostTier | None, disk: DiskTier | None, mover: Mover, *devices: torch.device) -> None:
        self.host, self.disk = host, disk
        self.mover, self._devices = mover, devices
        self._under_way: dict[MoverBatch, tuple[Store | Load, ...]] = {}

    def keeper(self, tier: Tier) -> HostTier | DiskTier:
        """Return that tier. Raises TierFull where the engine has none."""
        found = {"host": self.host, "disk": self.disk}.get(tier)
        if found is None:
            raise TierFull(f"This engine has no {tier} tier; start it with --{tier}-memory to allow one.")
        return found

    def replace_disk(self, tier: DiskTier) -> None:
        """Make `tier` the disk tier from now on. Raises InvariantError if the present one is not empty."""
        if self.disk is not None:
            if self.disk.places:
                raise InvariantError("The disk tier was to get another file while something lies in it.")
            self.disk.close()
        self.disk = tier

    @property
    def names(self) -> tuple[Tier, ...]:
        present: tuple[tuple[Tier, object], ...] = (("host", self.host), ("disk", self.disk))
        return tuple(name for name, keeper in present if keeper is not None)

    @property
    def moving(self) -> bool:
        return bool(self._under_way)

    def store(self, items: Sequence[Item], tier: Tier, *, urgent: bool = False) -> list[MoverBatch]:
        """Begin to copy items into a tier; skip those that move or have a copy there already. Raises TierFull."""
        items = [item for item in items if not item.moving and tier not in item.copies]
        places: Sequence[HostPlace | DiskPlace] = self.keeper(tier).allocate([item.nbytes for item in items])
        entries = [
            Store(item=item, tier=tier, version=item.version, place=place)
            for item, place in zip(items, places, strict=True)
        ]
        return [self._submit(chunk, urgent) for chunk in _chunks(entries)]

    def load(self, items: Sequence[Item], *, urgent: bool = True) -> list[MoverBatch]:
        """Begin to bring swapped-out items back to the device. Raises SlabFull."""
        items = [item for item in items if not item.moving and not item.resident]
        made: list[Item] = []
        try:
            for item in items:
                item.make_place()
                made.append(item)
        except SlabFull:
            for item in made:
                item.give_up_place()
            raise
        entries = [Load(item=item, tier=_nearest(item)) for item in items]
        return [self._submit(chunk, urgent) for chunk in _chunks(entries)]

    def settle(self, moved: Moved) -> int:
        """Account for a batch that has ended. Return the bytes it moved, 0 if it failed."""
        entries = self._under_way.pop(moved.batch)
        checksums = moved.checksums if moved.error is None else (None,) * len(entries)
        for entry, checksum in zip(entries, checksums, strict=True):
            entry.item.moving = False
            if isinstance(entry, Store):
                self._settle_store(entry, checksum, failed=moved.error is not None)
            else:
                self._settle_load(entry, failed=moved.error is not None)
            if entry.item.gone:
                entry.item.discard()
        return 0 if moved.error is not None else sum(entry.item.nbytes for entry in entries)

    def _settle_store(self, entry: Store, checksum: int | None, *, failed: bool) -> None:
        keeper, item = self.keeper(entry.tier), entry.item
        if not failed:
            keeper.traffic.bytes_out += item.nbytes
        if failed or item.gone or item.version != entry.version:
            keeper.free(entry.place)
            return
        item.keep(entry.tier, Stored(keeper=keeper, place=entry.place, version=entry.version, checksum=checksum))

    def _settle_load(self, entry: Load, *, failed: bool) -> None:
        if failed:
            entry.item.give_up_place()
            return
        self.keeper(entry.tier).traffic.bytes_in += entry.item.nbytes
        entry.item.note_arrival()

    def _submit(self, entries: Sequence[Store | Load], urgent: bool) -> MoverBatch:
        moves = tuple(self._move(entry) for entry in entries)
        ready = tuple(event_on(device) for device in self._devices if device.type == "cuda")
        batch = MoverBatch(moves=moves, urgent=urgent, ready=ready)
        for entry in entries:
            entry.item.moving = True
        self._under_way[batch] = tuple(entries)
        self.mover.submit(batch)
        return batch

    def _move(self, entry: Store | Load) -> MoverTask:
        item = entry.item
        if isinstance(entry, Load):
            return self._from_tier(item, entry.tier)
        source = item.span() if item.resident else self._host_span(item)
        if isinstance(entry.place, DiskPlace):
            assert self.disk is not None
            return Write(source=source, disk=self.disk, place=entry.place)
        assert self.host is not None
        return Copy(source=source, target=self.host.span(entry.place))

    def _from_tier(self, item: Item, tier: Tier) -> MoverTask:
        stored = item.copies[tier]
        if tier == "host":
            return Copy(source=self._host_span(item), target=item.span())
        assert self.disk is not None and isinstance(stored.place, DiskPlace) and stored.checksum is not None
        return Read(disk=self.disk, place=stored.place, checksum=stored.checksum, target=item.span())

    def _host_span(self, item: Item) -> Span:
        stored = item.copies.get("host")
        if stored is None or self.host is None or not isinstance(stored.place, HostPlace):
            raise InvariantError("A copy was to be made of an item that is neither on the device nor on the host.")
        return self.host.span(stored.place)

    @property
    def leaving(self) -> Iterator[Item]:
        """Items with a move under way."""
        return (entry.item for entries in self._under_way.values() for entry in entries)

    @property
    def host_bytes(self) -> int:
        """Bytes of main memory that the tiers themselves hold, disk staging included."""
        staging = 0 if self.disk is None else STAGING_BYTES
        return staging + (0 if self.host is None else self.host.allocated)

    def statistics(self) -> tuple[TierStatistics, ...]:
        return tuple(keeper.statistics() for keeper in (self.host, self.disk) if keeper is not None)

    def check(self, items: Iterable[Item]) -> None:
        """Raise InvariantError unless the places taken are exactly those of the copies of `items` (all that exist) and
        of the stores under way."""
        every = {id(item): item for item in (*items, *self.leaving)}
        stores = [e for entries in self._under_way.values() for e in entries if isinstance(e, Store)]
        places = [stored.place for item in every.values() for stored in item.copies.values()]
        places += [store.place for store in stores]
        if self.host is not None:
            self.host.check(place for place in places if isinstance(place, HostPlace))
        if self.disk is not None:
            self.disk.check(place for place in places if isinstance(place, DiskPlace))
        for item in every.values():
            item.check()

    def stop(self) -> None:
        """Stop the mover once the submitted batches are done, and close the file."""
        self.mover.stop()
        if self.disk is not None:
            self.disk.close()


def _nearest(item: Item) -> Tier:
    for tier in ("host", "disk"):
        if tier in item.copies:
            return "host" if tier == "host" else "disk"
    raise InvariantError("An item is away and in no tier.")


def _chunks(entries: Sequence[Store | Load]) -> Iterator[list[Store | Load]]:
    """Split entries, in order, into chunks of at most BATCH_BYTES; a larger item is a chunk of its own."""
    chunk: list[Store | Load] = []
    size = 0
    for entry in entries:
        if chunk and size + entry.item.nbytes > BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += entry.item.nbytes
    if chunk:
        yield chunk
