"""The host tier: copies, in main memory, of data that left the device. Segments come and go; pinned on CUDA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

from torch import Tensor

from djinn_jupyter.engine.memory.budget import Growth
from djinn_jupyter.engine.memory.offload.extents import Extents, Span
from djinn_jupyter.engine.memory.offload.swappable import Place, Traffic
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.engine.system.host_memory import PIECE_MOST, pageable
from djinn_jupyter.errors import TierFull
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.nouns import Tier, TierStatistics

AnyPlace = TypeVar("AnyPlace", bound=Place)


class CopyTier(ABC, Generic[AnyPlace]):
    """A tier of copies, and its accounting: `allocated` bytes of at most `limit`, of which `places` take `used`."""

    tier: ClassVar[Tier]
    advice: ClassVar[str] = ""  # behind the sentence for a tier that is full

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.allocated = self.used = self.places = 0
        self.traffic = Traffic()

    def allocate(self, sizes: Sequence[int]) -> list[AnyPlace]:
        """Return a place for each size. Raises TierFull; then none is taken."""
        taken: list[AnyPlace] = []
        try:
            for size in sizes:
                taken.append(self._allocate(size))
        except TierFull as full:
            for place in taken:
                self.free(place)
            raise TierFull(
                f"The {self.tier} tier has no room for {spell_bytes(sum(sizes))}: {spell_bytes(self.used)} are used of "
                f"a limit of {spell_bytes(self.limit)}. {full}{self.advice}"
            ) from None
        return taken

    @abstractmethod
    def _allocate(self, size: int) -> AnyPlace: ...

    @abstractmethod
    def free(self, place: Place) -> None: ...

    def _count(self, size: int, places: int) -> None:
        self.used += size
        self.places += places

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            tier=self.tier,
            pages=self.places,
            bytes_used=self.used,
            bytes_allocated=self.allocated,
            bytes_limit=self.limit,
            bytes_out=self.traffic.bytes_out,
            bytes_in=self.traffic.bytes_in,
        )


SEGMENT_BYTES: Final = 64 << 20
SPARE_SEGMENTS: Final = 2
ALIGNMENT: Final = 512

Memory = Callable[[int], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostSegment:
    """One mapping and its free runs."""

    memory: Tensor
    extents: Extents


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostPlace:
    """`nbytes` of a segment starting at `start`; the run taken is rounded up to the alignment."""

    segment: HostSegment
    start: int
    nbytes: int


class HostTier(CopyTier[HostPlace]):
    """Copies in main memory, up to a limit and as far as memory is available.

    Invariants: `allocated` is the sum of the segments and never exceeds the limit; a place is in one segment and has
    one owner until it is freed; a verb that raises has changed nothing. A few empty segments are kept, because mapping
    and pinning memory costs as much as filling it.
    """

    tier = "host"

    def __init__(self, limit_bytes: int, *, memory: Memory = pageable, growth: Growth | None = None) -> None:
        super().__init__(limit_bytes)
        self._growth = growth
        if growth is not None:
            growth.add(lambda: self.allocated)
        self._memory = memory
        self._segments: list[HostSegment] = []

    def _allocate(self, size: int) -> HostPlace:
        rounded = _rounded(size)
        for segment in self._segments:
            start = segment.extents.allocate(rounded)
            if start is not None:
                break
        else:
            segment = self._grow(rounded)
            start = segment.extents.allocate(rounded)
            assert start is not None
        self._count(rounded, 1)
        return HostPlace(segment=segment, start=start, nbytes=size)

    def free(self, place: Place) -> None:
        assert isinstance(place, HostPlace)
        rounded = _rounded(place.nbytes)
        place.segment.extents.free(place.start, rounded)
        self._count(-rounded, -1)
        if place.segment.extents.free_bytes == place.segment.extents.capacity:
            self.shrink(SPARE_SEGMENTS)

    def span(self, place: HostPlace) -> Span:
        return Span(memory=place.segment.memory, start=place.start, nbytes=place.nbytes)

    def _grow(self, needed: int) -> HostSegment:
        left = self._left
        if needed > left:
            self.shrink()
            left = self._left
        size = max(needed, min(SEGMENT_BYTES, left)) // ALIGNMENT * ALIGNMENT
        if needed > left and left < self.limit - self.allocated:
            raise TierFull(f"Of main memory {spell_bytes(left)} are left to it: close a session or another program.")
        if needed > left:
            raise TierFull("Close a session, or allow more with --host-memory.")
        if needed > PIECE_MOST:
            raise TierFull(f"One page or storage may be of {spell_bytes(PIECE_MOST)} at most.")
        try:
            memory = self._memory(size)
        except (OSError, MemoryError, RuntimeError) as error:
            raise TierFull(f"The system refused {spell_bytes(size)} of host memory: {error}.") from error
        self._segments.append(HostSegment(memory=memory, extents=Extents(size)))
        self.allocated += size
        return self._segments[-1]

    @property
    def _left(self) -> int:
        allowed = self.limit - self.allocated
        return allowed if self._growth is None else min(allowed, self._growth.left())

    def shrink(self, keep: int = 0) -> int:
        """Return the empty segments, except the first `keep`, to the system. Return the bytes freed."""
        empty = [s for s in self._segments if s.extents.free_bytes == s.extents.capacity][keep:]
        for segment in empty:
            self._segments.remove(segment)
            self.allocated -= segment.extents.capacity
        return sum(segment.extents.capacity for segment in empty)

    def check(self, held: Iterable[HostPlace]) -> None:
        """Raise InvariantError unless the places taken are exactly those `held`, and the sums agree."""
        by_segment: dict[int, list[tuple[int, int]]] = {id(segment): [] for segment in self._segments}
        count = 0
        for place in held:
            by_segment[id(place.segment)].append((place.start, _rounded(place.nbytes)))
            count += 1
        for segment in self._segments:
            segment.extents.check(by_segment[id(segment)])
        used = sum(size for taken in by_segment.values() for _, size in taken)
        allocated = sum(segment.extents.capacity for segment in self._segments)
        if (used, count, allocated) != (self.used, self.places, self.allocated) or allocated > self.limit:
            raise InvariantError(
                f"The host tier counts {self.used} bytes in {self.places} places of {self.allocated}; "
                f"{used} in {count} are held of {allocated}, and the limit is {self.limit}."
            )


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
