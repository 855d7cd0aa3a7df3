"""States that are not pages, by their place in the disk tier's file: named for an image, adopted from an image.

The current states of the layers belong to one session, because the next pass writes them; states kept along a line are
never written, and all sessions that name one share its storage. At swap-in the checksum tells if a place still holds
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, UntypedStorage

from djinn_jupyter.engine.forward.frame import States
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.states import LayerState
from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.storages import Storage, StorageTable
from djinn_jupyter.engine.memory.offload.swappable import Stored
from djinn_jupyter.engine.persistence.dump import STATES
from djinn_jupyter.engine.persistence.image import PlacesImage, SessionImage, StatesImage
from djinn_jupyter.engine.persistence.load import states_of
from djinn_jupyter.engine.persistence.values import (
    Kept,
    KeptStored,
    by_value,
    dtype_of,
    keep,
)
from djinn_jupyter.engine.session.footprint import all_storages_of
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.errors import CheckpointRefused

if TYPE_CHECKING:
    from djinn_jupyter.engine.session.runtime import Runtime
    from djinn_jupyter.engine.session.session import Session

Fetch = Callable[[KeptStored], Tensor]
DiskSpot = tuple[int, int, int]
"""First byte, bytes, checksum."""


class NotThere(Exception):
    """A page or state is not, or no longer, in the file."""


# ------------------------------------------------------------------------------------------------- into an image


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStates:
    """The states' part of a `PlacesImage`."""

    storages: dict[int, DiskSpot]
    states: StatesImage
    lines: dict[int, dict[int, StatesImage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A state that is never written again, as images store it: views of the storages, numbered by their
    identities."""

    kept: Kept
    storages: tuple[Storage, ...]


Names = MutableMapping[LayerState, Named]
"""A long line has thousands of states, each the same in every image, so each is named once."""


def name_states(
    session: Session, image: SessionImage, storage_table: StorageTable, tier: DiskTier, names: Names
) -> NamedStates:
    """Return where the states of a session without work under way lie. Raises NotThere unless all of them are in the
    file. `names` are kept from image to image."""
    all_storages_of(session, storage_table)  # drops the copies of storages that passes have written since
    naming = _Naming(storage_table, tier)
    try:
        states = naming.states(session.cache.live_states(), {})
        generations = {
            number: {length: naming.states(kept, names) for length, kept in generation.states.items()}
            for number, generation in generations_of(session, image).items()
            if generation.states
        }
    except CheckpointRefused as unknown:
        raise NotThere from unknown
    return NamedStates(storages=naming.storages, states=states, lines=generations)


class _Naming:
    """Names the states of one image. `storages` are those met so far."""

    def __init__(self, storage_table: StorageTable, tier: DiskTier) -> None:
        self._storage_table, self._tier = storage_table, tier
        self.storages: dict[int, DiskSpot] = {}

    def states(self, states: Mapping[int, LayerState], names: Names) -> StatesImage:
        return {layer: self._state(state, names) for layer, state in states.items()}

    def _state(self, state: LayerState, names: Names) -> Kept:
        named = names.get(state)
        if named is None:
            named = names[state] = self._named(state)
        for storage in named.storages:
            if storage.identity not in self.storages:
                self.storages[storage.identity] = self._spot(storage)
        return named.kept

    def _named(self, state: LayerState) -> Named:
        met: list[Storage] = []

        def stored(tensor: Tensor) -> Kept:
            if not tensor.numel():
                return by_value(tensor)
            met.append(self._storage(tensor))
            return _view(tensor, met[-1])

        return Named(kept=keep(dict(state.fields), STATES, stored), storages=tuple(met))

    def _storage(self, tensor: Tensor) -> Storage:
        storage = self._storage_table.of(tensor)
        if storage is None:
            raise NotThere
        return storage

    def _spot(self, storage: Storage) -> DiskSpot:
        stored = storage.copies.get("disk")
        if stored is None or stored.keeper is not self._tier or stored.checksum is None:
            raise NotThere
        assert isinstance(stored.place, DiskPlace)
        return stored.place.start, storage.nbytes, stored.checksum


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


# ----------------------------------------------------------------------------------------------- out of an image

Held = tuple[Storage, UntypedStorage]


class AdoptedStates:
    """Adopts the states of session after session. Invariant: a place belongs to one storage; a storage that passes
    write, to one session."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._common: dict[DiskSpot, Storage] = {}

    def adopt(
        self, runtime: Runtime, storage_table: StorageTable, session: Session, image: SessionImage, cache: PagedCache
    ) -> None:
        """Give an empty cache the states that the image names, and the session's generations those they had kept; all
        are swapped out. Raises InvariantError, TierFull, SlabFull and CheckpointRefused, and then has given nothing:
        purging the storage table frees what it had adopted by then."""
        places = image.places
        assert places is not None
        adopting = _Adopting(self, storage_table, places, session.residence.version)
        now = states_of(runtime, places.states, adopting.own)
        generations = generations_of(session, image)
        kept = {
            number: _generation_states(runtime, places.lines.get(number, {}), adopting.common) for number in generations
        }
        if any(set(kept[number]) != set(generation.states) for number, generation in generations.items()):
            raise CheckpointRefused("It does not say where all of its lines' states are.")
        cache.adopt_states(now)
        for number, generation in generations.items():
            generation.states = kept[number]

    def own(self, storage_table: StorageTable, spot: DiskSpot, epoch: int | None) -> Held:
        start, nbytes, checksum = spot
        if start < 0 or nbytes <= 0:
            raise CheckpointRefused("It names a storage that can be nowhere.")
        place = DiskPlace(start=start, nbytes=nbytes)
        self._tier.adopt(place)
        return storage_table.adopt(Stored(keeper=self._tier, place=place, version=0, checksum=checksum), epoch)

    def common(self, storage_table: StorageTable, spot: DiskSpot) -> Held:
        known = self._common.get(spot)
        if known is not None and not known.expired:
            return known, known.untyped()
        storage, raw = self.own(storage_table, spot, None)
        self._common[spot] = storage
        return storage, raw


def _generation_states(runtime: Runtime, named: Mapping[int, StatesImage], fetch: Fetch) -> dict[int, States]:
    return {length: states_of(runtime, states, fetch) for length, states in named.items()}


class _Adopting:
    """Holds one session's storages until all of its tensors are made."""

    def __init__(self, adopted: AdoptedStates, storage_table: StorageTable, places: PlacesImage, version: int) -> None:
        self._adopted, self._storage_table, self._spots, self._version = (
            adopted,
            storage_table,
            places.storages,
            version,
        )
        self._held: dict[int, Held] = {}

    def own(self, stored: KeptStored) -> Tensor:
        """Return a tensor that passes write."""
        return self._tensor(stored, lambda spot: self._adopted.own(self._storage_table, spot, self._version))

    def common(self, stored: KeptStored) -> Tensor:
        return self._tensor(stored, lambda spot: self._adopted.common(self._storage_table, spot))

    def _tensor(self, stored: KeptStored, take: Callable[[DiskSpot], Held]) -> Tensor:
        number = stored.storage
        if number not in self._spots or len(stored.shape) != len(stored.strides):
            raise CheckpointRefused("A state in it is of no storage or shape.")
        if number not in self._held:
            self._held[number] = take(self._spots[number])
        storage, _ = self._held[number]
        return storage.tensor(dtype_of(stored.dtype), stored.shape, stored.strides, stored.offset)
