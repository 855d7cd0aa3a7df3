"""The device memory of one group's pages: segments of slots that come and go, and the slab that hands out its pages.

Shapes: S slots of a segment, n layers of a run, H key-value heads, P positions of a page, D features of a head.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget, Droppable, Part
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerRun
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.engine.system.host_memory import HUGE_BYTES, pageable
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.nouns import SlabStatistics

SEGMENT_BYTES = 64 << 20
SEGMENTS_LEAST = 16  # per budget: tensors cannot use the slots that few pages leave free in a large segment
POISON = 0xFF  # every float made of these bytes is NaN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One allocation. `keys[r]` and `values[r]` are views `knHPD_S` [S, n, H, P, D] of run r."""

    memory: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def slots(self) -> int:
        return self.memory.shape[0]


class Segments:
    """Slots of one page each, `uint8[slots, page_bytes]`.

    Invariants: a slot is free or taken; a verb that raises has changed nothing. Slot s lies in segment
    s // segment_slots, which may be shorter where the budget ran out. The lowest free slots are taken first, so that
    the last segments become empty. Only `shrink` returns freed memory to the device; on CUDA it waits for the device.
    """

    def __init__(
        self, geometry: GroupGeometry, device: torch.device, budget: Budget, segment_slots: int | None, poison: bool
    ) -> None:
        self.geometry = geometry
        self.device = device
        self.budget = budget
        most = min(SEGMENT_BYTES, budget.free // SEGMENTS_LEAST)
        self.segment_slots = segment_slots or max(1, most // geometry.page_bytes)
        self.poison = poison
        self._segments: dict[int, Segment] = {}
        self._free: list[int] = []  # a heap
        self._taken: set[int] = set()
        self._place = {layer.cache_layer: place for place, layer in enumerate(geometry.layers)}
        part = Part(name="pages", held=lambda: self.bytes_allocated, idle=self._empty_bytes, release=self.shrink)
        budget.join(self, part)

    def take(self, count: int) -> list[int]:
        """Take `count` slots with undefined contents. Raises SlabFull."""
        if count > len(self._free):
            self._grow(count - len(self._free), asked=count)
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._taken.update(taken)
        return taken

    def give_back(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._taken.remove(slot)
            heapq.heappush(self._free, slot)
            if self.poison:
                self.bytes_of(slot).fill_(POISON)

    def bytes_of(self, slot: int) -> Tensor:
        """Return all bytes of a slot, `uint8[page_bytes]`."""
        return self._segments[slot // self.segment_slots].memory[slot % self.segment_slots]

    def span(self, slot: int) -> Span:
        size = self.geometry.page_bytes
        memory = self._segments[slot // self.segment_slots].memory
        return Span(memory=memory, start=slot % self.segment_slots * size, nbytes=size)

    def run_views(self, slot: int, run: int) -> tuple[Tensor, Tensor]:
        """Return keys [n, H, P, Dk] and values [n, H, P, Dv] of a run's layers in a slot."""
        segment, place = self._segments[slot // self.segment_slots], slot % self.segment_slots
        return segment.keys[run][place], segment.values[run][place]

    def layer_views(self, slot: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys [H, P, Dk] and values [H, P, Dv] of a cache layer in a slot."""
        at = self._place[layer]
        for number, run in enumerate(self.geometry.runs):
            if at < run.first + run.layers:
                keys, values = self.run_views(slot, number)
                return keys[at - run.first], values[at - run.first]
        raise InvariantError(f"Layer {layer} is in no run of its group.")

    def _grow(self, short: int, asked: int) -> None:
        """Add segments for at least `short` more slots, the last one as large as the budget allows. Raises SlabFull."""
        size = self.geometry.page_bytes
        free, taken = len(self._free), len(self._taken)
        try:
            self.budget.take(short * size, by=self)
        except SlabFull as error:
            raise SlabFull(
                f"Asked for {asked} pages of {spell_bytes(size)}; {free} are free and {taken} in use, "
                f"{self.budget.bound}"
            ) from error
        more = self.budget.take_of_the_free(-short % self.segment_slots, size)
        try:
            self._add(short + more)
        except (OSError, RuntimeError) as error:  # torch has no narrower class
            raise SlabFull(f"The device refused {spell_bytes((short + more) * size)} for pages: {error}") from error

    def _add(self, slots: int) -> None:
        """Allocate slots that the budget has granted; return the bytes that the device refuses to the budget."""
        left = slots
        try:
            while left:
                count = min(left, self.segment_slots)
                segment = _segment(self.geometry, count, self.device)
                if self.poison:
                    segment.memory.fill_(POISON)
                number = next(n for n in range(len(self._segments) + 1) if n not in self._segments)
                self._segments[number] = segment
                for slot in range(number * self.segment_slots, number * self.segment_slots + count):
                    heapq.heappush(self._free, slot)
                left -= count
        finally:
            self.budget.give_back(left * self.geometry.page_bytes)

    def shrink(self) -> int:
        """Free the segments without a taken slot. Return the bytes freed.

        On CUDA this waits for the device, and also returns memory that working copies freed to other programs.
        """
        empty = self._empty()
        released = sum(self._segments.pop(number).memory.nbytes for number in empty)
        self._free = [slot for slot in self._free if slot // self.segment_slots not in empty]
        heapq.heapify(self._free)
        self.budget.give_back(released)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return released

    def _empty(self) -> set[int]:
        return self._segments.keys() - {slot // self.segment_slots for slot in self._taken}

    def _empty_bytes(self) -> int:
        return sum(self._segments[number].memory.nbytes for number in self._empty())

    @property
    def slots(self) -> int:
        return sum(segment.slots for segment in self._segments.values())

    @property
    def free(self) -> int:
        return len(self._free)

    def ample(self) -> set[int]:
        """Return the numbers of segments that could have all taken slots: the largest, the fullest of these first, and
        then the smallest that has the rest. All where too few slots are free to empty one."""
        if len(self._free) < min((segment.slots for segment in self._segments.values()), default=0):
            return set(self._segments)
        used = Counter(slot // self.segment_slots for slot in self._taken)
        sizes = {number: (segment.slots, used[number]) for number, segment in self._segments.items()}
        left, found = len(self._taken), set[int]()
        for number in sorted(sizes, key=lambda one: sizes[one], reverse=True):
            if left <= sizes[number][0]:
                enough = [one for one in sizes.keys() - found if sizes[one][0] >= left]
                return {*found, min(enough, key=lambda one: (sizes[one][0], -used[one]))} if left else found
            found.add(number)
            left -= sizes[number][0]
        return found

    def lies_in(self, slot: int, numbers: Collection[int]) -> bool:
        return slot // self.segment_slots in numbers

    def take_in(self, numbers: Collection[int], most: int) -> list[int]:
        """Take up to `most` slots that are free in these segments."""
        taken = heapq.nsmallest(most, (slot for slot in self._free if self.lies_in(slot, numbers)))
        self._taken.update(taken)
        self._free = sorted(set(self._free).difference(taken))
        return taken

    @property
    def bytes_allocated(self) -> int:
        return sum(segment.memory.nbytes for segment in self._segments.values())

    def check(self, held: Collection[int]) -> None:
        """Raise InvariantError unless every slot is free or taken, not both, and the taken ones are those `held`."""
        every = {
            slot
            for number, segment in self._segments.items()
            for slot in range(number * self.segment_slots, number * self.segment_slots + segment.slots)
        }
        free = Counter(self._free)
        if twice := [slot for slot, times in (free + Counter(held)).items() if times > 1]:
            raise InvariantError(f"Slots in two places: {twice}.")
        if both := free.keys() & self._taken:
            raise InvariantError(f"Slots both free and in use: {sorted(both)}.")
        if lost := every ^ (free.keys() | self._taken):
            raise InvariantError(f"Slots neither free nor in use, or of no segment: {sorted(lost)}.")
        if strange := self._taken ^ set(held):
            raise InvariantError(f"Slots taken and held by no page, or held and not taken: {sorted(strange)}.")


def _segment(geometry: GroupGeometry, slots: int, device: torch.device) -> Segment:
    memory = uninitialised((slots, geometry.page_bytes), torch.uint8, device)
    with torch.inference_mode(False):  # a view of another dtype made inside it could not be written outside
        views = [_run_views(memory, run, geometry.page_positions) for run in geometry.runs]
    return Segment(memory=memory, keys=tuple(k for k, _ in views), values=tuple(v for _, v in views))


def _run_views(memory: Tensor, run: LayerRun, page_positions: int) -> tuple[Tensor, Tensor]:
    """Return the keys [S, n, H, P, Dk] and values [S, n, H, P, Dv] of a run in all slots of a segment."""
    rows = memory[:, run.offset : run.offset + page_positions * run.position_bytes].view(run.dtype)
    layers = rows.unflatten(1, (run.layers, -1))
    key_size = run.kv_heads * page_positions * run.key_dim
    keys = layers[..., :key_size].unflatten(-1, (run.kv_heads, page_positions, run.key_dim))
    values = layers[..., key_size:].unflatten(-1, (run.kv_heads, page_positions, run.value_dim))
    return keys, values


def uninitialised(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised ordinary tensor, also inside an inference mode, so that it can be written in any mode. A
    large one in main memory has a mapping of its own. Raises OSError and RuntimeError."""
    nbytes = math.prod(shape) * dtype.itemsize
    with torch.inference_mode(False):
        if device.type == "cpu" and nbytes >= HUGE_BYTES:
            return pageable(nbytes).view(dtype).view(tuple(shape))
        return torch.empty(tuple(shape), dtype=dtype, device=device)


# The pages of one group: numbers, reference counts, versions, locations. Knows no session and no tier. Shapes: n
# layers of a run, H key-value heads, P positions of a page, D features of a head.


class Page(Item):
    """One page: its reference count, and its slot on the device, None while it is away."""

    __slots__ = ("_slots", "references", "slot")

    def __init__(self, slots: Segments, slot: int | None) -> None:
        super().__init__(slots.geometry.page_bytes)
        self._slots = slots
        self.references = 1
        self.slot: int | None = slot

    @property
    def resident(self) -> bool:
        return self.slot is not None and not self.arriving

    @property
    def placed(self) -> bool:
        return self.slot is not None

    def span(self) -> Span:
        return self._slots.span(self.place)

    @property
    def place(self) -> int:
        """Its slot. Raises InvariantError when it has none."""
        if self.slot is None:
            raise InvariantError("A page was to be read or written that is not on the device.")
        return self.slot

    def make_place(self) -> None:
        (self.slot,) = self._slots.take(1)
        self.arriving = True

    def give_up_place(self) -> None:
        self._slots.give_back([self.place])
        self.slot, self.arriving = None, False

    def move_to(self, slot: int) -> None:
        """Move the page to a slot that was taken for it, on the device's current stream."""
        before, self.slot = self.place, slot
        self._slots.bytes_of(slot).copy_(self._slots.bytes_of(before))
        self._slots.give_back([before])


class Slab:
    """Pages of one group, each in a slot of the device's segments or away in a tier.

    Invariants: a page has a reference count of at least 1, and is removed when its last reference is freed; a verb that
    raises has changed nothing; only the single holder of a page with count 1 may write its bytes, and pages with a
    higher count must not be written; every writer calls `wrote`. Page numbers are never reused, and are not slots: a
    page that left the device may return to any slot. Only pages on the device have views.
    """

    def __init__(
        self,
        geometry: GroupGeometry,
        device: torch.device,
        limit_bytes: int | Budget,
        segment_pages: int | None = None,
        poison: bool = False,
    ) -> None:
        self.geometry = geometry
        self.device = torch.device(device)
        self.budget = limit_bytes if isinstance(limit_bytes, Budget) else Budget(limit_bytes)
        self.segments = Segments(geometry, self.device, self.budget, segment_pages, poison)
        self._numbers = itertools.count()
        self._pages: dict[int, Page] = {}
        self._lent: dict[object, int] = {}

    def allocate(self, pages: int) -> list[int]:
        """Return `pages` new pages, each with a reference count of 1 and undefined contents. Raises SlabFull."""
        slots = self.segments.take(pages)
        taken = [next(self._numbers) for _ in slots]
        self._pages.update({page: Page(self.segments, slot) for page, slot in zip(taken, slots, strict=True)})
        return taken

    def adopt(self, stored: Stored) -> int:
        """Add a page that is away, with this copy on disk and a reference count of 1. Return its number."""
        page = Page(self.segments, None)
        page.keep("disk", stored)
        number = next(self._numbers)
        self._pages[number] = page
        return number

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each page."""
        for page, times in self._held(pages).items():
            self._pages[page].references += times

    def free(self, pages: Iterable[int]) -> None:
        """Remove one reference from each page; a page without any is freed, in the tiers too."""
        for page, times in self._held(pages).items():
            self._pages[page].references -= times
            if not self._pages[page].references:
                self._pages.pop(page).discard()

    def references(self, page: int) -> int:
        """Return a page's reference count; 0 for an unknown number."""
        return self._pages[page].references if page in self._pages else 0

    def page(self, page: int) -> Page:
        """Return the page of that number, for the tiers."""
        return self._pages[page]

    def __iter__(self) -> Iterator[Page]:
        """Iterate over all pages, also those that are away."""
        return iter(self._pages.values())

    def wrote(self, page: int) -> None:
        """Note that a page's bytes have changed, which makes its copies in the tiers stale."""
        self._pages[page].wrote()

    def copy(self, source: int, target: int) -> None:
        """Copy all bytes of a page into another, on the device's current stream."""
        self.bytes_of(target).copy_(self.bytes_of(source))

    def _held(self, pages: Iterable[int]) -> Counter[int]:
        wanted = Counter(pages)
        for page, times in wanted.items():
            if self.references(page) < times:
                raise InvariantError(f"Page {page} has {self.references(page)} references; {times} were spoken of.")
        return wanted

    def bytes_of(self, page: int) -> Tensor:
        """Return all bytes of a page, `uint8[page_bytes]`."""
        return self.segments.bytes_of(self._pages[page].place)

    def run_views(self, page: int, run: int) -> tuple[Tensor, Tensor]:
        """Return keys [n, H, P, Dk] and values [n, H, P, Dv] of a run's layers in a page."""
        return self.segments.run_views(self._pages[page].place, run)

    def key_view(self, page: int, layer: int) -> Tensor:
        """Return keys [H, P, Dk] of a cache layer in a page."""
        return self.segments.layer_views(self._pages[page].place, layer)[0]

    def value_view(self, page: int, layer: int) -> Tensor:
        """Return values [H, P, Dv] of a cache layer in a page."""
        return self.segments.layer_views(self._pages[page].place, layer)[1]

    def lend(self, owner: object, copy: Droppable) -> None:
        """Count a working copy of this group's rows against the budget. Raises SlabFull."""
        self.budget.lend(owner, copy)
        self._lent[owner] = copy.size

    def reclaim(self, owner: object) -> None:
        self.budget.reclaim(owner)
        del self._lent[owner]

    def shrink(self) -> int:
        """Free the segments that hold no page. Return the bytes freed. On CUDA this waits for the device."""
        return self.segments.shrink()

    def compact(self) -> int:
        """Move pages into as little memory as holds them, to empty other segments. Return the pages moved."""
        ample = self.segments.ample()
        here = [page for page in self._pages.values() if page.resident and not page.moving]
        strewn = [page for page in here if not self.segments.lies_in(page.place, ample)]
        slots = self.segments.take_in(ample, len(strewn)) if strewn else ()
        for page, slot in zip(strewn, slots, strict=False):
            page.move_to(slot)
        return len(slots)

    @property
    def pages_in_use(self) -> int:
        """Number of pages with references, also those that are away."""
        return len(self._pages)

    @property
    def segment_bytes(self) -> int:
        return self.segments.bytes_allocated

    @property
    def working_bytes(self) -> int:
        return sum(self._lent.values())

    def statistics(self) -> SlabStatistics:
        return SlabStatistics(
            pages=self.segments.slots,
            pages_free=self.segments.free,
            pages_shared=sum(page.references > 1 for page in self._pages.values()),
            page_bytes=self.geometry.page_bytes,
            bytes_allocated=self.segment_bytes,
            bytes_limit=self.budget.limit,
            working_copies=len(self._lent),
            working_bytes=self.working_bytes,
        )

    def check(self, leaving: Iterable[Item] = ()) -> None:
        """Raise InvariantError unless every slot is free or of one page, and every page has a reference and a location.

        `leaving` are items with a copy under way; a page among them that is `gone` still occupies its slot."""
        pages = [*self._pages.values(), *(item for item in leaving if isinstance(item, Page) and item.gone)]
        self.segments.check([page.slot for page in pages if page.slot is not None and page._slots is self.segments])
        if wrong := {number: page.references for number, page in self._pages.items() if page.references < 1}:
            raise InvariantError(f"Pages in use without a reference: {wrong}.")
        for page in self._pages.values():
            page.check()
