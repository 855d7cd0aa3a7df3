"""An item of the tiers: some bytes of the device, with a version and the copies that exist. Moves nothing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.system.invariant_error import InvariantError
from djinn_jupyter.wire.nouns import Tier


class Place(Protocol):
    """The location of a copy in a tier."""

    @property
    def nbytes(self) -> int: ...


class Keeper(Protocol):
    """A tier, as a copy sees it."""

    @property
    def traffic(self) -> Traffic: ...

    def free(self, place: Place) -> None: ...


@dataclass(slots=True)
class Traffic:
    """The bytes that were copied out of the device to a tier, and back in."""

    bytes_out: int = 0
    bytes_in: int = 0

    def count_out(self, size: int) -> None:
        self.bytes_out += size

    def count_in(self, size: int) -> None:
        self.bytes_in += size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A copy of an item in its `version`, at `place` in the tier `keeper`. `checksum` where the tier needs one."""

    keeper: Keeper
    place: Place
    version: int
    checksum: int | None = None

    def free(self) -> None:
        self.keeper.free(self.place)


class Item:
    """Bytes that are on the device or were swapped out.

    Invariants: every write increments `version` and frees copies of older versions at once, so a stale copy can never
    be loaded. An item that is not resident has a copy of the present version or is `gone`. While `moving`, a copy from
    or to its device bytes is under way and they stay where they are; one move at a time.
    """

    __slots__ = ("copies", "gone", "moving", "nbytes", "version")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.version = 0
        self.copies: dict[Tier, Stored] = {}
        self.moving = False
        self.gone = False

    @property
    @abstractmethod
    def resident(self) -> bool:
        """True if all of its bytes are on the device."""

    @property
    @abstractmethod
    def placed(self) -> bool:
        """True if its bytes take room on the device, also while they arrive there."""

    @abstractmethod
    def span(self) -> Span:
        """Return its bytes on the device, also while they arrive."""

    @abstractmethod
    def make_place(self) -> None:
        """Take room on the device for bytes that are about to arrive. Raises SlabFull."""

    @abstractmethod
    def arrive(self) -> None:
        """Note that the bytes have arrived."""

    @abstractmethod
    def give_up_place(self) -> None:
        """Free the device bytes: they were stored, did not arrive, or the item is gone."""

    # -------------------------------------------------------------------------------------------- verbs

    def begin_move(self) -> None:
        self.moving = True

    def end_move(self) -> None:
        self.moving = False

    def resize(self, nbytes: int) -> None:
        """Count as many bytes, of which no copy exists yet."""
        self.nbytes = nbytes

    def wrote(self) -> None:
        """Note that the device bytes were written: increment the version and drop all copies."""
        self.version += 1
        self.drop_copies()

    def leave(self) -> None:
        """Free the device bytes. Raises InvariantError unless they are resident, not moving and copied."""
        if not self.resident or self.moving or not self.copies:
            raise InvariantError("An item was to leave the device without a copy, in the middle of one, or twice.")
        self.give_up_place()

    def discard(self) -> None:
        """Free an item without holders. A move under way ends first and finds it `gone`; then this is called again."""
        self.gone = True
        if not self.moving:
            self.drop_copies()
            self.release()

    def release(self) -> None:
        """Free the device bytes of a resident item."""
        if self.resident:
            self.give_up_place()

    def keep(self, tier: Tier, stored: Stored) -> None:
        if stored.version != self.version or tier in self.copies:
            raise InvariantError(f"A copy of version {stored.version} came for an item in version {self.version}.")
        self.copies[tier] = stored

    def drop_copy(self, tier: Tier) -> None:
        """Free the copy in a tier, if one exists."""
        stored = self.copies.pop(tier, None)
        if stored is not None:
            stored.free()

    def drop_copies(self) -> None:
        for tier in tuple(self.copies):
            self.drop_copy(tier)

    def check(self) -> None:
        if not self.gone and not self.resident and not self.copies:
            raise InvariantError("An item is neither on the device nor in a tier.")
        if wrong := [s.version for s in self.copies.values() if s.version != self.version]:
            raise InvariantError(f"Copies of versions {wrong} are kept of an item in version {self.version}.")
