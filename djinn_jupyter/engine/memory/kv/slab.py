"""The pages of one group: numbers, reference counts, versions, locations. Knows no session and no tier.

Shapes: n layers of a run, H key-value heads, P positions of a page, D features of a head.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget, Droppable
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry
from djinn_jupyter.engine.memory.kv.segments import Segments
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.invariant_error import InvariantError
from djinn_jupyter.wire.holdings import SlabStatistics


class Page(Item):
    """One page: its reference count, and its slot on the device, None while it is away."""

    __slots__ = ("_slots", "arriving", "references", "slot")

    def __init__(self, slots: Segments, slot: int | None) -> None:
        super().__init__(slots.geometry.page_bytes)
        self._slots = slots
        self.references = 1
        self.slot: int | None = slot
        self.arriving = False

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

    def arrive(self) -> None:
        self.arriving = False

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

    # -------------------------------------------------------------------------------------------- pages

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

    # -------------------------------------------------------------------------------------------- views

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

    # ------------------------------------------------------------------------------------ working copies

    def lend(self, owner: object, copy: Droppable) -> None:
        """Count a working copy of this group's rows against the budget. Raises SlabFull."""
        self.budget.lend(owner, copy)
        self._lent[owner] = copy.size

    def reclaim(self, owner: object) -> None:
        self.budget.reclaim(owner)
        del self._lent[owner]

    # ----------------------------------------------------------------------------------------- segments

    def shrink(self) -> int:
        """Free the segments that hold no page. Return the bytes freed. On CUDA this waits for the device."""
        return self.segments.shrink()

    def compact(self) -> int:
        """Move pages into as little memory as holds them all, so that other segments are empty. Return the pages
        moved."""
        ample = self.segments.ample()
        here = [page for page in self._pages.values() if page.resident and not page.moving]
        strewn = [page for page in here if not self.segments.lies_in(page.place, ample)]
        slots = self.segments.take_in(ample, len(strewn)) if strewn else ()
        for page, slot in zip(strewn, slots, strict=False):
            page.move_to(slot)
        return len(slots)

    # --------------------------------------------------------------------------------------- accounting

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
