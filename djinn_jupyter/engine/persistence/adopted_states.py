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
from djinn_jupyter.engine.memory.offload.storages import Blob, Blobs
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
from djinn_jupyter.engine.session.footprint import blobs_of
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.errors import CheckpointRefused

if TYPE_CHECKING:
    from djinn_jupyter.engine.session.runtime import Runtime
    from djinn_jupyter.engine.session.session import Session

Fetch = Callable[[KeptStored], Tensor]
Spot = tuple[int, int, int]
"""First byte, bytes, checksum."""


class NotThere(Exception):
    """A page or state is not, or no longer, in the file."""


# ------------------------------------------------------------------------------------------------- into an image


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStates:
    """The states' part of a `PlacesImage`."""

    storages: dict[int, Spot]
    states: StatesImage
    lines: dict[int, dict[int, StatesImage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A state that is never written again, as images store it: views of the storages of these blobs, numbered by their
    identities."""

    kept: Kept
    blobs: tuple[Blob, ...]


Names = MutableMapping[LayerState, Named]
"""A long line has thousands of states, each the same in every image, so each is named once."""


def name_states(session: Session, image: SessionImage, blobs: Blobs, tier: DiskTier, names: Names) -> NamedStates:
    """Return where the states of a session without work under way lie. Raises NotThere unless all of them are in the
    file. `names` are kept from image to image."""
    blobs_of(session, blobs)  # drops the copies of storages that passes have written since
    naming = _Naming(blobs, tier)
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

    def __init__(self, blobs: Blobs, tier: DiskTier) -> None:
        self._blobs, self._tier = blobs, tier
        self.storages: dict[int, Spot] = {}

    def states(self, states: Mapping[int, LayerState], names: Names) -> StatesImage:
        return {layer: self._state(state, names) for layer, state in states.items()}

    def _state(self, state: LayerState, names: Names) -> Kept:
        named = names.get(state)
        if named is None:
            named = names[state] = self._named(state)
        for blob in named.blobs:
            if blob.identity not in self.storages:
                self.storages[blob.identity] = self._spot(blob)
        return named.kept

    def _named(self, state: LayerState) -> Named:
        met: list[Blob] = []

        def stored(tensor: Tensor) -> Kept:
            if not tensor.numel():
                return by_value(tensor)
            met.append(self._blob(tensor))
            return _view(tensor, met[-1])

        return Named(kept=keep(dict(state.fields), STATES, stored), blobs=tuple(met))

    def _blob(self, tensor: Tensor) -> Blob:
        blob = self._blobs.of(tensor)
        if blob is None:
            raise NotThere
        return blob

    def _spot(self, blob: Blob) -> Spot:
        stored = blob.copies.get("disk")
        if stored is None or stored.keeper is not self._tier or stored.checksum is None:
            raise NotThere
        assert isinstance(stored.place, DiskPlace)
        return stored.place.start, blob.nbytes, stored.checksum


def _view(tensor: Tensor, blob: Blob) -> Kept:
    return KeptStored(
        storage=blob.identity,
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

Held = tuple[Blob, UntypedStorage]


class AdoptedStates:
    """Adopts the states of session after session. Invariant: a place belongs to one blob; a blob that passes write, to
    one session."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._common: dict[Spot, Blob] = {}

    def adopt(self, runtime: Runtime, blobs: Blobs, session: Session, image: SessionImage, cache: PagedCache) -> None:
        """Give an empty cache the states that the image names, and the session's generations those they had kept; all
        are swapped out. Raises BooksBroken, TierFull, SlabFull and CheckpointRefused, and then has given nothing:
        purging the blobs frees what it had adopted by then."""
        places = image.places
        assert places is not None
        adopting = _Adopting(self, blobs, places, session.residence.version)
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

    def own(self, blobs: Blobs, spot: Spot, epoch: int | None) -> Held:
        start, nbytes, checksum = spot
        if start < 0 or nbytes <= 0:
            raise CheckpointRefused("It names a storage that can be nowhere.")
        place = DiskPlace(start=start, nbytes=nbytes)
        self._tier.adopt(place)
        return blobs.adopt(Stored(keeper=self._tier, place=place, version=0, checksum=checksum), epoch)

    def common(self, blobs: Blobs, spot: Spot) -> Held:
        known = self._common.get(spot)
        if known is not None and not known.expired:
            return known, known.storage()
        blob, storage = self.own(blobs, spot, None)
        self._common[spot] = blob
        return blob, storage


def _generation_states(runtime: Runtime, named: Mapping[int, StatesImage], fetch: Fetch) -> dict[int, States]:
    return {length: states_of(runtime, states, fetch) for length, states in named.items()}


class _Adopting:
    """Holds one session's storages until all of its tensors are made."""

    def __init__(self, adopted: AdoptedStates, blobs: Blobs, places: PlacesImage, version: int) -> None:
        self._adopted, self._blobs, self._spots, self._version = adopted, blobs, places.storages, version
        self._held: dict[int, Held] = {}

    def own(self, stored: KeptStored) -> Tensor:
        """Return a tensor that passes write."""
        return self._tensor(stored, lambda spot: self._adopted.own(self._blobs, spot, self._version))

    def common(self, stored: KeptStored) -> Tensor:
        return self._tensor(stored, lambda spot: self._adopted.common(self._blobs, spot))

    def _tensor(self, stored: KeptStored, take: Callable[[Spot], Held]) -> Tensor:
        number = stored.storage
        if number not in self._spots or len(stored.shape) != len(stored.strides):
            raise CheckpointRefused("A state in it is of no storage or shape.")
        if number not in self._held:
            self._held[number] = take(self._spots[number])
        blob, _ = self._held[number]
        return blob.tensor(dtype_of(stored.dtype), stored.shape, stored.strides, stored.offset)
