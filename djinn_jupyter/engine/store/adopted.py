"""States that are not pages, by their place in the disk tier's file: named for an image, adopted from an image.

The current states of the layers belong to one session, because the next pass writes them; states of past lengths are
never written, and all sessions that name one share its storage. At swap-in the checksum shows whether a place still
holds it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from torch import Tensor, UntypedStorage

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.memory.kv.pages import GroupCache
from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.swappable import Item, Storage, StorageTable, Stored
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.passes.frame import States
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.session.table import all_storages_of
from djinn_jupyter.engine.store.dump import STATES
from djinn_jupyter.engine.store.image import GroupPlaces, PlacesImage, SessionImage, StatesImage
from djinn_jupyter.engine.store.load import states_of
from djinn_jupyter.engine.store.values import Kept, KeptStored, by_value, dtype_of, keep
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import CheckpointRefused, MemoryShortage, StorageFailed, TierFull
from djinn_jupyter.files import force_names

if TYPE_CHECKING:
    from djinn_jupyter.engine.session.runtime import Runtime
    from djinn_jupyter.engine.session.session import Session


DiskSpot = tuple[int, int, int]
"""First byte, bytes, checksum."""


class NotThere(Exception):
    """A page or state is not, or no longer, in the file."""


Names = MutableMapping[LayerState, tuple[Kept, tuple[Storage, ...]]]
"""States that are not written again, in the form of images: views of the storages, numbered by identity. A long line
has thousands of them, each the same in every image, so each is named once."""


class _Naming:
    """Names the states of one image. `storages` are those found so far. Raises NotThere unless all are in the file."""

    def __init__(self, storage_table: StorageTable, tier: DiskTier) -> None:
        self._storage_table, self._tier = storage_table, tier
        self.storages: dict[int, DiskSpot] = {}

    def states(self, states: Mapping[int, LayerState], names: Names) -> StatesImage:
        return {layer: self._state(state, names) for layer, state in states.items()}

    def _state(self, state: LayerState, names: Names) -> Kept:
        if (named := names.get(state)) is None:
            named = names[state] = self._named(state)
        for storage in named[1]:
            if storage.identity not in self.storages:
                place, checksum = spot_in(self._tier, storage)
                self.storages[storage.identity] = place.start, storage.nbytes, checksum
        return named[0]

    def _named(self, state: LayerState) -> tuple[Kept, tuple[Storage, ...]]:
        met: list[Storage] = []

        def stored(tensor: Tensor) -> Kept:
            if not tensor.numel():
                return by_value(tensor)
            if (storage := self._storage_table.of(tensor)) is None:
                raise NotThere
            met.append(storage)
            return _view(tensor, storage)

        try:
            return keep(dict(state.fields), STATES, stored), tuple(met)
        except CheckpointRefused as unknown:
            raise NotThere from unknown


def spot_in(tier: DiskTier, item: Item) -> tuple[DiskPlace, int]:
    """Return the place of an item's copy in the tier's file, and its checksum. Raises NotThere."""
    stored = item.copies.get("disk")
    if stored is None or stored.keeper is not tier or stored.checksum is None:
        raise NotThere
    assert isinstance(stored.place, DiskPlace)
    return stored.place, stored.checksum


def _view(tensor: Tensor, storage: Storage) -> Kept:
    return KeptStored(
        storage=storage.identity,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        offset=int(tensor.storage_offset()),
    )


def generations_of(session: Session, image: SessionImage) -> dict[int, Generation]:
    """Return a session's generations by their numbers in its image."""
    pairs = [
        (stop.line, own.generation) for stop, own in zip(image.history.stops, session.history.written, strict=True)
    ]
    generations = dict(pairs)
    if image.line is not None and session.generation is not None:
        generations[image.line] = session.generation
    return generations


class _Adopting:
    """Adopts the states of one session, and holds their storages until all of its tensors are made. Invariant: a place
    belongs to one storage; a storage that passes write, to one session. `common` are the storages that they do not
    write, by their places, also of other sessions."""

    def __init__(
        self,
        tier: DiskTier,
        storage_table: StorageTable,
        places: PlacesImage,
        version: int,
        common: dict[DiskSpot, Storage],
    ) -> None:
        self._tier, self._storage_table, self._common = tier, storage_table, common
        self._spots, self._version = places.storages, version
        self._held: dict[int, tuple[Storage, UntypedStorage]] = {}

    def own(self, stored: KeptStored) -> Tensor:
        """Return a tensor that passes write."""
        return self._tensor(stored, lambda spot: self._adopted(spot, self._version))

    def common(self, stored: KeptStored) -> Tensor:
        return self._tensor(stored, self._shared)

    def _tensor(self, stored: KeptStored, take: Callable[[DiskSpot], tuple[Storage, UntypedStorage]]) -> Tensor:
        number = stored.storage
        if number not in self._spots or len(stored.shape) != len(stored.strides):
            raise CheckpointRefused("A state in it is of no storage or shape.")
        if number not in self._held:
            self._held[number] = take(self._spots[number])
        storage, _ = self._held[number]
        return storage.tensor(dtype_of(stored.dtype), stored.shape, stored.strides, stored.offset)

    def _shared(self, spot: DiskSpot) -> tuple[Storage, UntypedStorage]:
        known = self._common.get(spot)
        if known is not None and not known.expired:
            return known, known.untyped()
        storage, raw = self._adopted(spot, None)
        self._common[spot] = storage
        return storage, raw

    def _adopted(self, spot: DiskSpot, epoch: int | None) -> tuple[Storage, UntypedStorage]:
        start, nbytes, checksum = spot
        if start < 0 or nbytes <= 0:
            raise CheckpointRefused("It names a storage that can be nowhere.")
        return self._storage_table.adopt(stored_at(self._tier, start, nbytes, checksum), epoch)


def stored_at(tier: DiskTier, start: int, nbytes: int, checksum: int) -> Stored:
    """Return the copy at a place of the tier's file, which is taken from now on. Raises InvariantError, TierFull."""
    place = DiskPlace(start=start, nbytes=nbytes)
    tier.adopt(place)
    return Stored(keeper=tier, place=place, version=0, checksum=checksum)


# Adopt the disk tier's file of an earlier engine with a journal: the file keeps its name, images say where in it pages
# and states lie, and the next engine adopts them. At swap-in the checksum shows whether a place still holds what an
# image says.

log = logging.getLogger(__name__)

SUFFIX: Final = ".pages"


class KeptPages:
    """Invariant: each on-disk page is adopted once and shared by the sessions that referenced it. A session adopts all
    its pages and states, or none."""

    def __init__(self, path: Path, tier: DiskTier) -> None:
        self.path, self._tier = path, tier
        self._adopted: dict[tuple[int, int, int], int] = {}
        self._named = False
        self._common: dict[DiskSpot, Storage] = {}
        self._names: Names = WeakKeyDictionary()

    @property
    def file(self) -> str:
        return self.path.stem

    def sync(self) -> None:
        """Return when the bytes that images refer to, and the file's name, survive a power loss. Raises OSError."""
        if not self._named:
            force_names(self.path.parent)
            self._named = True
        try:
            self._tier.sync()
        except StorageFailed as failed:
            raise OSError(str(failed)) from failed

    def remove(self) -> None:
        """Delete the file, so that no engine finds it; it stays usable until it is closed."""
        self.path.unlink(missing_ok=True)

    def places_of(self, session: Session, image: SessionImage) -> PlacesImage | None:
        """Return the places of all rows and states of a session, given its image; None where some of them are not in
        the file, or there are none."""
        if session.needs_recompute or session.work is not None or session.storage_table is None:
            return None
        try:
            groups = tuple(_places(group, self._tier) for group in session.cache.groups)
            all_storages_of(session, session.storage_table)  # drops the copies of storages that passes have written
            naming = _Naming(session.storage_table, self._tier)
            states = naming.states(session.cache.live_states(), {})
            lines = {
                number: {length: naming.states(kept, self._names) for length, kept in generation.states.items()}
                for number, generation in generations_of(session, image).items()
                if generation.states
            }
        except NotThere:
            return None
        if not naming.storages and not any(group.pages for group in groups):
            return None
        return PlacesImage(file=self.file, groups=groups, storages=naming.storages, states=states, lines=lines)

    def begin_with(self, images: Iterable[SessionImage]) -> None:
        """Make the file long enough for the images' pages and states. Raises TierFull."""
        places = [image.places for image in images if image.places is not None and image.places.file == self.file]
        ends = [at + group.page_bytes for one in places for group in one.groups for at, _ in group.pages]
        ends += [at + nbytes for one in places for at, nbytes, _ in one.storages.values()]
        self._tier.grow(max(ends, default=0))

    def adopt(self, runtime: Runtime, storage_table: StorageTable, session: Session, image: SessionImage) -> bool:
        """Give a session that was rebuilt without rows and states those that the image names, all of them still on
        disk. True where it has them now."""
        places = image.places
        if not session.needs_recompute or places is None:
            return False
        if places.file != self.file or not _fits(runtime, image, places):
            return False
        if places.storages and len(storage_table.devices) > 1:
            return False  # an image does not say which device a state belongs on
        cache = runtime.space.new_cache()
        if not self._fill(cache, runtime, storage_table, session, image):
            storage_table.purge()  # states adopted before one was refused
            return False
        cache.stand_at(image.committed)
        session.inherit_rows(cache, image.exactness)
        return True

    def _fill(
        self, cache: PagedCache, runtime: Runtime, storage_table: StorageTable, session: Session, image: SessionImage
    ) -> bool:
        assert image.places is not None
        try:
            for number, (group, kept) in enumerate(zip(cache.groups, image.places.groups, strict=True)):
                self._adopt_group(number, group, kept)
            cache.check()
            self._adopt_states(cache, runtime, storage_table, session, image)
        except (InvariantError, MemoryShortage, CheckpointRefused) as broken:
            cache.free()
            log.info("Session %r is made again: not all that it had on disk is its own: %s", session.name, broken)
            return False
        return True

    def _adopt_states(
        self, cache: PagedCache, runtime: Runtime, storage_table: StorageTable, session: Session, image: SessionImage
    ) -> None:
        """Give an empty cache the states that the image names, and the session's generations their kept ones; all are
        swapped out. Raises InvariantError, TierFull, SlabFull and CheckpointRefused, and has then given nothing:
        purging the storage table frees what it had adopted."""
        places = image.places
        assert places is not None
        adopting = _Adopting(self._tier, storage_table, places, session.residence.version, self._common)
        now = states_of(runtime, places.states, adopting.own)
        generations = generations_of(session, image)
        kept: dict[int, dict[int, States]] = {number: {} for number in generations}
        for number in generations:
            for length, states in places.lines.get(number, {}).items():
                kept[number][length] = states_of(runtime, states, adopting.common)
        if any(kept[number].keys() != generation.states.keys() for number, generation in generations.items()):
            raise CheckpointRefused("It does not say where all of its lines' states are.")
        cache.adopt_states(now)
        for number, generation in generations.items():
            generation.states = kept[number]

    def _adopt_group(self, number: int, group: GroupCache, kept: GroupPlaces) -> None:
        pages: list[int] = []
        try:
            for start, checksum in kept.pages:
                pages.append(self._adopt_page(number, group, start, checksum))
        except (InvariantError, TierFull):
            group.slab.free(pages)
            raise
        group.adopt(pages, behind=kept.behind, written=kept.written, known_from=kept.known_from)

    def _adopt_page(self, number: int, group: GroupCache, start: int, checksum: int) -> int:
        key = (number, start, checksum)
        known = self._adopted.get(key)
        if known is not None and group.slab.references(known):
            group.slab.share([known])
            return known
        self._adopted[key] = group.slab.adopt(stored_at(self._tier, start, group.geometry.page_bytes, checksum))
        return self._adopted[key]


def keep_pages(
    tiers: Tiers,
    storage_table: StorageTable,
    open_file: Callable[[Path], DiskTier | None],
    folder: Path,
    there: Sequence[Path],
) -> KeptPages | None:
    """Make the disk tier a file in `folder`: the first of the paths `there` (the others are deleted) or a new one. None
    where there is no disk tier. Raises StorageFailed."""
    if tiers.disk is None:
        return None
    storage_table.purge()
    path = there[0] if there else folder / f"{secrets.token_hex(8)}{SUFFIX}"
    for other in there[1:]:
        with suppress(OSError):
            other.unlink()
    tier = open_file(path)
    assert tier is not None
    tiers.replace_disk(tier)
    return KeptPages(path, tier)


def _places(group: GroupCache, tier: DiskTier) -> GroupPlaces:
    """Return the places of the group's pages. Raises NotThere."""
    if group.working is not None and group.working.dirty:
        raise NotThere
    pages: list[tuple[int, int]] = []
    for number in group.table.pages:
        place, checksum = spot_in(tier, group.slab.page(number))
        pages.append((place.start, checksum))
    size = group.geometry.page_positions
    return GroupPlaces(
        layers=tuple(layer.cache_layer for layer in group.geometry.layers),
        page_positions=size,
        page_bytes=group.geometry.page_bytes,
        behind=group.table.first // size,
        written=group.written,
        known_from=group.known_from,
        pages=tuple(pages),
    )


def _fits(runtime: Runtime, image: SessionImage, places: PlacesImage) -> bool:
    """True where this engine's pages have the same shape, and the numbers do not contradict each other."""
    groups = runtime.forward.geometry.groups
    shapes = [(tuple(la.cache_layer for la in g.layers), g.page_positions, g.page_bytes) for g in groups]
    return [(g.layers, g.page_positions, g.page_bytes) for g in places.groups] == shapes and all(
        image.committed <= g.written <= (g.behind + len(g.pages)) * g.page_positions
        and g.behind >= 0
        and g.known_from >= 0
        and all(start >= 0 for start, _ in g.pages)
        for g in places.groups
    )
