"""The growth still allowed to the engine's parts of main memory. A configured limit is a bound, not existing memory:
Linux grants mappings that it cannot fill and kills the process that fills them."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import torch

from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.machine import MainMemory, main_memory
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.nouns import BudgetStatistics, Holding

HEADROOM: Final = 20  # a twentieth of the memory stays free for what a pass allocates, and for other programs
LEAST_HEADROOM: Final = 4  # but no more than a quarter of the memory available at the start
STALE_SECONDS: Final = 0.25  # a reading opens a dozen files, and pages are taken many at a time


class Growth:
    """One instance for all parts of an engine in main memory. Their bytes count from the moment they are mapped, though
    the system counts them only once they are filled."""

    def __init__(
        self, read: Callable[[], MainMemory] = main_memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._parts: list[Callable[[], int]] = []
        found = read()
        self._begun = self._available = found.available
        self._taken_then, self._read_at = 0, clock()
        self._kept_free = min(found.total // HEADROOM, found.available // LEAST_HEADROOM)

    def add(self, taken: Callable[[], int]) -> None:
        """Add a part; `taken` returns how many bytes it has."""
        self._parts.append(taken)

    def left(self) -> int:
        """Return the bytes that may still be taken."""
        taken, now = sum(part() for part in self._parts), self._clock()
        if now - self._read_at >= STALE_SECONDS:
            self._read_at = now
            with suppress(OSError):  # where no file can be opened the last reading is used
                self._available, self._taken_then = self._read().available, taken
        left = min(self._begun - taken, self._available - (taken - self._taken_then))
        return max(0, left - self._kept_free)


# The bytes of one device that pages, working copies, stops and later kinds of holder share, and the order in which
# they are released under pressure. Knows no session and no tier.


@dataclass(frozen=True, slots=True, kw_only=True)
class Droppable:
    """A working copy as the budget sees it. It does not displace other copies of its own session."""

    size: int
    session: object
    drop: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of holder of device memory: its name for the statistics, the bytes it holds by its own accounting, the
    unused bytes among them, and the verb that releases those (returns the bytes released)."""

    name: str
    held: Callable[[], int]
    idle: Callable[[], int]
    release: Callable[[], int]


class Budget:
    """A limit in bytes on all device memory of all sessions together.

    A module that keeps device memory beyond a pass (batches, gradients, modules, caches of any kind) draws it here:
    `join` once with a `Part`; `take` before allocating (SlabFull is raised before anything changes); `give_back` when
    the memory is freed. Memory that can be counted only once it exists, such as a forward's results, has room
    `set_aside` before and is `record`ed out of that; one session's slice sets aside at a time and `put_back`s the rest
    at its end. Records beyond the room set aside may overdraw the limit: while `overdrawn` nothing more can be taken,
    and the engine evicts older stops and sessions until it is 0. The accounting is checked part by part: `taken` equals
    what the parts report as held, plus what is set aside.

    Invariants: 0 <= taken; `take` never exceeds the limit. Under pressure unused memory goes first, since no session
    loses by it, then working copies, least recently used first. Memory in use is never taken away here. A demand that
    cannot be met changes nothing. With `growth` the bytes are main memory, and `take` is also bounded by what is left
    there.
    """

    def __init__(self, limit_bytes: int, growth: Growth | None = None) -> None:
        self.limit = limit_bytes
        self.taken = 0
        self.aside = 0
        self._growth = growth
        if growth is not None:
            growth.add(lambda: self.taken)
        self._copies: OrderedDict[object, Droppable] = OrderedDict()
        self._parts: dict[object, Part] = {}

    def join(self, owner: object, part: Part) -> None:
        """Register `owner`, which draws from now on. It passes itself as `by` to `take`, so that its own unused memory
        is not released for that."""
        self._parts[owner] = part

    @property
    def free(self) -> int:
        """Bytes that may be taken without releasing anything."""
        allowed = self.limit - self.taken
        return allowed if self._growth is None else min(allowed, self._growth.left())

    @property
    def lent(self) -> int:
        """Bytes of working copies."""
        return sum(copy.size for copy in self._copies.values())

    def take(self, asked: int, *, by: object) -> None:
        """Take `asked` bytes, releasing other owners' unused memory and working copies if needed. Raises SlabFull, and
        changes nothing, where even that is not enough."""
        if asked > self.free:
            self._make_room(asked, by)
        self.taken += asked

    def take_of_the_free(self, most: int, unit: int) -> int:
        """Take as many units of `unit` bytes as are free, up to `most`. Return how many were taken."""
        units = max(0, min(most, self.free // unit))
        self.taken += units * unit
        return units

    def set_aside(self, size: int, *, by: object) -> None:
        """Set aside at least `size` bytes for later records. Raises SlabFull, and changes nothing."""
        if size > self.aside:
            self.take(size - self.aside, by=by)
            self.aside = size

    def put_back(self, kept: int = 0) -> None:
        """Give back the bytes that were set aside and not recorded, but for those `kept`."""
        self.taken, self.aside = self.taken - self.aside + kept, kept

    def record(self, size: int) -> None:
        """Count bytes that exist already: first out of those set aside, the rest in addition."""
        drawn = min(size, self.aside)
        self.aside -= drawn
        self.taken += size - drawn

    def give_back(self, size: int) -> None:
        if size > self.taken:
            raise InvariantError(f"{size} bytes given back of {self.taken} taken.")
        self.taken -= size

    def lend(self, owner: object, copy: Droppable) -> None:
        """Take bytes for a working copy. Under pressure the budget calls its `drop`, which calls `reclaim`."""
        self.take(copy.size, by=copy.session)
        self._copies[owner] = copy

    def reclaim(self, owner: object) -> None:
        self.give_back(self._copies.pop(owner).size)

    def touch(self, owner: object) -> None:
        """Mark the working copy of `owner` as most recently used: it is dropped last."""
        self._copies.move_to_end(owner)

    @property
    def overdrawn(self) -> int:
        """Bytes recorded beyond the limit, which must be released."""
        return max(0, self.taken - self.limit)

    def relieve(self) -> int:
        """Release unused memory and working copies until the limit holds. Return the bytes that are still overdrawn."""
        self._give_way(0, by=None)
        return self.overdrawn

    def held(self) -> dict[str, int]:
        """Return the bytes held, by kind of holder."""
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
        """Raise InvariantError unless the parts hold exactly `taken` less what is set aside."""
        held = self.held()
        if sum(held.values()) != self.taken - self.aside:
            raise InvariantError(f"{self.taken} bytes are taken; the parts hold {held}.")

    @property
    def bound(self) -> str:
        """The end of an error message: which limit binds, and the remedy."""
        if self.free < self.limit - self.taken:
            left = f"main memory has {spell_bytes(self.free)} left for them, of a limit of {spell_bytes(self.limit)}"
            return f"and {left}. Close a session or another program."
        return f"and the limit is {spell_bytes(self.limit)} for all. Close a session, or allow more device memory."

    def _make_room(self, asked: int, by: object) -> None:
        idle = {owner: part.idle() for owner, part in self._parts.items() if owner is not by}
        droppable = sum(copy.size for copy in self._copies.values() if copy.session is not by)
        if asked > self.free + sum(idle.values()) + droppable:
            raise SlabFull(
                f"Asked for {spell_bytes(asked)}; {spell_bytes(max(0, self.free))} are free and "
                f"{spell_bytes(droppable)} in working copies, {self.bound}"
            )
        self._give_way(asked, by)

    def _give_way(self, asked: int, by: object) -> None:
        for owner, part in list(self._parts.items()):
            if asked > self.free and owner is not by and part.idle():
                part.release()
        for copy in list(self._copies.values()):
            if asked > self.free and copy.session is not by:
                copy.drop()


class Budgets(Budget):
    """A budget for each device, `by_device`. Pages, working copies, stops and states draw from their device's budget.

    Memory drawn here may end up on any of them (a pass's stop, the sequences of a sweep), so it is drawn on every
    device in full: more than is needed, never less. Each session's pages are spread over the devices in the same
    `shares`, so the device with the least room for its share limits `free`.
    """

    def __init__(self, by_device: Mapping[torch.device, Budget], shares: Sequence[float]) -> None:
        self.by_device = dict(by_device)
        self._homes = tuple(self.by_device.values())
        self._shares = tuple(shares)
        super().__init__(sum(home.limit for home in self._homes))

    @property
    def free(self) -> int:
        return min(int(home.free / share) for home, share in zip(self._homes, self._shares, strict=True))

    @property
    def lent(self) -> int:
        return min(home.lent for home in self._homes)

    def join(self, owner: object, part: Part) -> None:
        for home in self._homes:
            home.join(owner, replace(part))

    def take(self, asked: int, *, by: object) -> None:
        drawn: list[Budget] = []
        try:
            for home in self._homes:
                home.take(asked, by=by)
                drawn.append(home)
        except SlabFull:
            for home in drawn:
                home.give_back(asked)
            raise

    def give_back(self, size: int) -> None:
        for home in self._homes:
            home.give_back(size)

    def set_aside(self, size: int, *, by: object) -> None:
        before = [home.aside for home in self._homes]
        try:
            for home in self._homes:
                home.set_aside(size, by=by)
        except SlabFull:
            for home, aside in zip(self._homes, before, strict=True):
                home.put_back(aside)
            raise

    def put_back(self, kept: int = 0) -> None:
        for home in self._homes:
            home.put_back(kept)

    @property
    def overdrawn(self) -> int:
        return max(home.overdrawn for home in self._homes)

    def relieve(self) -> int:
        return max(home.relieve() for home in self._homes)

    def held(self) -> dict[str, int]:
        """Return the bytes held on all devices together, by kind of holder."""
        found: Counter[str] = Counter()
        for home in self._homes:
            found.update(home.held())
        return dict(found)

    def check(self) -> None:
        for home in self._homes:
            home.check()

    @property
    def bound(self) -> str:
        """The end of an error message: the limit of the device that has least left, and the remedy."""
        return min(self._homes, key=lambda home: home.free).bound

    def statistics(self) -> BudgetStatistics:
        return BudgetStatistics(
            bytes_limit=self.limit,
            bytes_taken=sum(home.taken for home in self._homes),
            bytes_overdrawn=self.overdrawn,
            holdings=tuple(Holding(kind=kind, bytes_held=size) for kind, size in self.held().items()),
        )


def by_device(budget: Budget, device: torch.device) -> Mapping[torch.device, Budget]:
    """Return the budget of each device: of several, or only of `device`."""
    return budget.by_device if isinstance(budget, Budgets) else {device: budget}
