"""The bytes of one device that slabs and working copies share, and what gives way when they run short."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from djinn_jupyter.errors import DjinnError, SlabFull

from .growth import Growth


class BooksBroken(DjinnError):
    """The memory's books contradict themselves, or a caller asked for what they exclude: a fault in the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A working copy as the budget sees it: its session's other copies do not give way to it."""

    size: int
    session: object
    drop: Callable[[], None]


class Budget:
    """A limit in bytes on pages and working copies together.

    Invariants: 0 <= taken <= limit, always; `taken` is what the slabs' segments and the lent working copies add up to.
    Under pressure the empty segments of slabs go first, for they hurt nobody, then working copies, the one unused for
    the longest first. Pages in use are never taken from anybody here. A demand that cannot be met changes nothing.
    With `growth` the bytes are main memory, and what is not left there cannot be taken either.
    """

    def __init__(self, limit_bytes: int, growth: Growth | None = None) -> None:
        self.limit = limit_bytes
        self.taken = 0
        self._growth = growth
        if growth is not None:
            growth.add(lambda: self.taken)
        self._copies: OrderedDict[object, Copy] = OrderedDict()
        self._slabs: dict[object, tuple[Callable[[], int], Callable[[], int]]] = {}

    @property
    def free(self) -> int:
        """Bytes that may be taken without anybody giving way."""
        allowed = self.limit - self.taken
        return allowed if self._growth is None else min(allowed, self._growth.left())

    @property
    def lent(self) -> int:
        """Bytes of working copies."""
        return sum(copy.size for copy in self._copies.values())

    def take(self, asked: int, *, by: object) -> None:
        """Take `asked` bytes. Raises SlabFull, and changes nothing, where not even others giving way would do."""
        if asked > self.free:
            self._make_room(asked, by)
        self.taken += asked

    def take_of_the_free(self, most: int, unit: int) -> int:
        """As many units of so many bytes as are free, up to `most`; how many were taken."""
        units = max(0, min(most, self.free // unit))
        self.taken += units * unit
        return units

    def give_back(self, size: int) -> None:
        if size > self.taken:
            raise BooksBroken(f"{size} bytes given back of {self.taken} taken.")
        self.taken -= size

    def lend(self, owner: object, copy: Copy) -> None:
        """Take bytes for a working copy; its `drop` is called when it has to go, and calls `reclaim`."""
        self.take(copy.size, by=copy.session)
        self._copies[owner] = copy

    def reclaim(self, owner: object) -> None:
        self.give_back(self._copies.pop(owner).size)

    def touch(self, owner: object) -> None:
        """The working copy of `owner` is in use: it goes last."""
        self._copies.move_to_end(owner)

    def register(self, slab: object, empty_bytes: Callable[[], int], shrink: Callable[[], int]) -> None:
        """A slab: how many bytes of it are in empty segments, and the verb that releases them."""
        self._slabs[slab] = (empty_bytes, shrink)

    @property
    def bound(self) -> str:
        """What holds the bytes in, and what helps."""
        if self.free < self.limit - self.taken:
            left = f"main memory has {mebibytes(self.free)} left for them, of a limit of {mebibytes(self.limit)}"
            return f"and {left}. Close a session or another program."
        return f"and the limit is {mebibytes(self.limit)} for all. Close a session, or allow more device memory."

    def _make_room(self, asked: int, by: object) -> None:
        empty = {slab: empty() for slab, (empty, _) in self._slabs.items() if slab is not by}
        droppable = sum(copy.size for copy in self._copies.values() if copy.session is not by)
        if asked > self.free + sum(empty.values()) + droppable:
            raise SlabFull(
                f"Asked for {mebibytes(asked)}; {mebibytes(self.free)} are free and {mebibytes(droppable)} in "
                f"working copies, {self.bound}"
            )
        for slab, size in empty.items():
            if asked > self.free and size:
                self._slabs[slab][1]()
        for copy in list(self._copies.values()):
            if asked > self.free and copy.session is not by:
                copy.drop()


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
