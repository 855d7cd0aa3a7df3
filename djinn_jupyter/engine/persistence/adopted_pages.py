"""Adopt the disk tier's file of an earlier engine with a journal: the file keeps its name, images say where in it pages
and states lie, and the next engine adopts them. At swap-in the checksum tells if a place still holds what an image
says."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.group_cache import GroupCache
from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.swappable import Stored
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.persistence.adopted_states import (
    AdoptedStates,
    Names,
    NotThere,
    name_states,
)
from djinn_jupyter.engine.persistence.image import GroupPlaces, PlacesImage, SessionImage
from djinn_jupyter.engine.system.invariant_error import InvariantError
from djinn_jupyter.errors import CheckpointRefused, MemoryShortage, StorageFailed, TierFull
from djinn_jupyter.fsync import force_names

if TYPE_CHECKING:
    from djinn_jupyter.engine.session.runtime import Runtime
    from djinn_jupyter.engine.session.session import Session

log = logging.getLogger(__name__)

SUFFIX: Final = ".pages"


class KeptPages:
    """Invariant: each on-disk page is adopted once and shared by the sessions that referenced it. A session adopts all
    its pages and states, or none."""

    def __init__(self, path: Path, tier: DiskTier) -> None:
        self.path, self._tier = path, tier
        self._adopted: dict[tuple[int, int, int], int] = {}
        self._named = False
        self._states = AdoptedStates(tier)
        self._names: Names = WeakKeyDictionary()

    @property
    def file(self) -> str:
        return self.path.stem

    def sync(self) -> None:
        """Return when the bytes that images refer to, and the file's name, would survive a loss of power. Raises
        OSError."""
        if not self._named:
            force_names(self.path.parent)
            self._named = True
        try:
            self._tier.sync()
        except StorageFailed as failed:
            raise OSError(str(failed)) from failed

    def remove(self) -> None:
        """Delete the file, which no engine will look for; it stays usable until it is closed."""
        self.path.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------- into an image

    def places_of(self, session: Session, image: SessionImage) -> PlacesImage | None:
        """Return where all rows and states of a session lie, given its image; None where some of them are not in the
        file, or there are none."""
        if session.needs_recompute or session.work is not None or session.storage_table is None:
            return None
        try:
            groups = tuple(_places(group, self._tier) for group in session.cache.groups)
            named = name_states(session, image, session.storage_table, self._tier, self._names)
        except NotThere:
            return None
        if not named.storages and not any(group.pages for group in groups):
            return None
        return PlacesImage(
            file=self.file, groups=groups, storages=named.storages, states=named.states, lines=named.lines
        )

    # ------------------------------------------------------------------------------------------- out of an image

    def begin_with(self, images: Iterable[SessionImage]) -> None:
        """Make the file as long as the images' pages and states need. Raises TierFull."""
        places = [image.places for image in images if image.places is not None and image.places.file == self.file]
        ends = [at + group.page_bytes for one in places for group in one.groups for at, _ in group.pages]
        ends += [at + nbytes for one in places for at, nbytes, _ in one.storages.values()]
        self._tier.begin_with(max(ends, default=0))

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
            self._states.adopt(runtime, storage_table, session, image, cache)
        except (InvariantError, MemoryShortage, CheckpointRefused) as broken:
            cache.free()
            log.info("Session %r is made again: not all that it had on disk is its own: %s", session.name, broken)
            return False
        return True

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
        place = DiskPlace(start=start, nbytes=group.geometry.page_bytes)
        self._tier.adopt(place)
        stored = Stored(keeper=self._tier, place=place, version=0, checksum=checksum)
        self._adopted[key] = group.slab.adopt(stored)
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
    """Return where the group's pages lie. Raises NotThere."""
    if group.working is not None and group.working.dirty:
        raise NotThere
    pages: list[tuple[int, int]] = []
    for number in group.table.pages:
        stored = group.slab.page(number).copies.get("disk")
        if stored is None or stored.keeper is not tier or stored.checksum is None:
            raise NotThere
        assert isinstance(stored.place, DiskPlace)
        pages.append((stored.place.start, stored.checksum))
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
    """True where this engine's pages have the shape of those, and the numbers do not contradict each other."""
    groups = runtime.forward.geometry.groups
    shapes = [(tuple(la.cache_layer for la in g.layers), g.page_positions, g.page_bytes) for g in groups]
    return [(g.layers, g.page_positions, g.page_bytes) for g in places.groups] == shapes and all(
        image.committed <= g.written <= (g.behind + len(g.pages)) * g.page_positions
        and g.behind >= 0
        and g.known_from >= 0
        and all(start >= 0 for start, _ in g.pages)
        for g in places.groups
    )
