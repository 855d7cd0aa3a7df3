"""The bytes of one device that pages, working copies, stops and whatever comes later share, and what gives way when
they run short. Knows no session and no tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from djinn_jupyter.engine.memory.growth import Growth
from djinn_jupyter.engine.system.amounts import mebibytes
from djinn_jupyter.engine.system.books_broken import BooksBroken
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire.holdings import BudgetStatistics, Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A working copy as the budget sees it: its session's other copies do not give way to it."""

    size: int
    session: object
    drop: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of holder of device memory: its name for the statistics, the bytes that it has by its own books, those
    of them that nobody uses, and the verb that releases these (returns the bytes released)."""

    name: str
    held: Callable[[], int]
    idle: Callable[[], int]
    release: Callable[[], int]


class Budget:
    """A limit in bytes on all that sessions have on the device, together.

    Whoever takes device memory that outlives a pass (batches, gradients, modules, caches of any kind) draws it here:
    `join` once with a `Part`; `take` before allocating, and be refused with SlabFull before anything is changed;
    `give_back` when the memory is gone. What is counted only once it exists, as a forward's results are, has its room
    `set_aside` before and is `record`ed out of that; one session's slice sets aside at a time, and `put_back`s the rest
    at its end. What is recorded beyond may overdraw the limit: while `overdrawn` nothing more can be taken, and the
    engine has older stops and sessions leave until it is 0. The books are checked part by part: `taken` is what the
    parts say that they hold, with what is set aside.

    Invariants: 0 <= taken; `take` never leads beyond the limit. Under pressure what nobody uses goes first, for that
    hurts nobody, then working copies, the one unused for the longest first. What is in use is never taken from anybody
    here. A demand that cannot be met changes nothing. With `growth` the bytes are main memory, and what is not left
    there cannot be taken either.
    """

    def __init__(self, limit_bytes: int, growth: Growth | None = None) -> None:
        self.limit = limit_bytes
        self.taken = 0
        self.aside = 0
        self._growth = growth
        if growth is not None:
            growth.add(lambda: self.taken)
        self._copies: OrderedDict[object, Copy] = OrderedDict()
        self._parts: dict[object, Part] = {}

    def join(self, owner: object, part: Part) -> None:
        """`owner` draws from now on; it names itself as `by` when it takes, so as not to be asked to give way to
        itself."""
        self._parts[owner] = part

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

    def set_aside(self, size: int, *, by: object) -> None:
        """Have at least `size` bytes set aside for what will be recorded. Raises SlabFull, and changes nothing."""
        if size > self.aside:
            self.take(size - self.aside, by=by)
            self.aside = size

    def put_back(self) -> None:
        """Give back what was set aside and not recorded."""
        self.taken, self.aside = self.taken - self.aside, 0

    def record(self, size: int) -> None:
        """Bytes that are there already, out of what was set aside as far as that goes."""
        drawn = min(size, self.aside)
        self.aside -= drawn
        self.taken += size - drawn

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

    @property
    def overdrawn(self) -> int:
        """Bytes recorded beyond the limit, which somebody has to give up."""
        return max(0, self.taken - self.limit)

    def relieve(self) -> int:
        """Have what nobody uses and working copies give way to what was recorded; bytes that are still overdrawn."""
        self._give_way(0, by=None)
        return self.overdrawn

    def held(self) -> dict[str, int]:
        """Bytes by kind of holder."""
        found = {"working copies": self.lent}
        for part in self._parts.values():
            found[part.name] = found.get(part.name, 0) + part.held()
        return found

    def statistics(self) -> BudgetStatistics:
        return BudgetStatistics(
            bytes_limit=self.limit,
            bytes_taken=self.taken,
            bytes_overdrawn=self.overdrawn,
            holdings=tuple(Holding(kind=kind, bytes_held=size) for kind, size in self.held().items()),
        )

    def check(self) -> None:
        """Raise BooksBroken unless the parts hold exactly what was taken, but for what is set aside."""
        held = self.held()
        if sum(held.values()) != self.taken - self.aside:
            raise BooksBroken(f"{self.taken} bytes are taken; the parts hold {held}.")

    @property
    def bound(self) -> str:
        """What holds the bytes in, and what helps."""
        if self.free < self.limit - self.taken:
            left = f"main memory has {mebibytes(self.free)} left for them, of a limit of {mebibytes(self.limit)}"
            return f"and {left}. Close a session or another program."
        return f"and the limit is {mebibytes(self.limit)} for all. Close a session, or allow more device memory."

    def _make_room(self, asked: int, by: object) -> None:
        idle = {owner: part.idle() for owner, part in self._parts.items() if owner is not by}
        droppable = sum(copy.size for copy in self._copies.values() if copy.session is not by)
        if asked > self.free + sum(idle.values()) + droppable:
            raise SlabFull(
                f"Asked for {mebibytes(asked)}; {mebibytes(max(0, self.free))} are free and {mebibytes(droppable)} in "
                f"working copies, {self.bound}"
            )
        self._give_way(asked, by)

    def _give_way(self, asked: int, by: object) -> None:
        for owner, part in list(self._parts.items()):
            if asked > self.free and owner is not by and part.idle():
                part.release()
        for copy in list(self._copies.values()):
            if asked > self.free and copy.session is not by:
                copy.drop()
