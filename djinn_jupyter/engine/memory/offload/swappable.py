"""What the tiers keep copies of: some bytes of the device, with a version and the copies there are. Moves nothing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.system.books_broken import BooksBroken
from djinn_jupyter.wire.nouns import Tier


class Place(Protocol):
    """Where a tier keeps a copy."""

    @property
    def nbytes(self) -> int: ...


class Keeper(Protocol):
    """A tier, as a copy sees it."""

    def free(self, place: Place) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A copy of an item as it was in `version`, in `keeper`'s `place`. `checksum` where the tier needs one."""

    keeper: Keeper
    place: Place
    version: int
    checksum: int | None = None

    def free(self) -> None:
        self.keeper.free(self.place)


class Item:
    """Bytes that live on the device or have left it.

    Invariants: `version` moves on with every write, and a copy of an older version is given up at once, so a stale copy
    can never come back. An item that is not resident has a copy of the present version or is `gone`. While `moving`,
    a copy from or to its device bytes is under way and those stay where they are; one move at a time.
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
        """Whether its bytes are on the device, all of them."""

    @abstractmethod
    def span(self) -> Span:
        """Its bytes on the device, also while they arrive."""

    @abstractmethod
    def make_place(self) -> None:
        """Room on the device for bytes that are about to arrive. Raises SlabFull."""

    @abstractmethod
    def arrive(self) -> None:
        """The bytes are there."""

    @abstractmethod
    def give_up_place(self) -> None:
        """The device bytes are wanted no more: they were stored, did not arrive, or the item is gone."""

    # -------------------------------------------------------------------------------------------- verbs

    def wrote(self) -> None:
        """The device bytes are other ones now."""
        self.version += 1
        self.drop_copies()

    def leave(self) -> None:
        """Give up the device bytes, of which there is a copy."""
        if not self.resident or self.moving or not self.copies:
            raise BooksBroken("An item was to leave the device without a copy, in the middle of one, or twice.")
        self.give_up_place()

    def discard(self) -> None:
        """Nobody holds it any more. What is under way ends first and finds it gone; then this is called again."""
        self.gone = True
        if not self.moving:
            self.drop_copies()
            self.release()

    def release(self) -> None:
        """Give up the device bytes where there are any, arrived or not."""
        if self.resident:
            self.give_up_place()

    def keep(self, tier: Tier, stored: Stored) -> None:
        if stored.version != self.version or tier in self.copies:
            raise BooksBroken(f"A copy of version {stored.version} came for an item in version {self.version}.")
        self.copies[tier] = stored

    def drop_copy(self, tier: Tier) -> None:
        """Give up the copy in a tier, if there is one."""
        stored = self.copies.pop(tier, None)
        if stored is not None:
            stored.free()

    def drop_copies(self) -> None:
        for tier in tuple(self.copies):
            self.drop_copy(tier)

    def check(self) -> None:
        if not self.gone and not self.resident and not self.copies:
            raise BooksBroken("An item is neither on the device nor in a tier.")
        if wrong := [s.version for s in self.copies.values() if s.version != self.version]:
            raise BooksBroken(f"Copies of versions {wrong} are kept of an item in version {self.version}.")
