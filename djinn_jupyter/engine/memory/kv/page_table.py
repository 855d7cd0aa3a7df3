"""A session's pages of one group, in order of position. Maps a position to its page; knows nothing of the contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.invariant_error import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The positions [start, start + count) within one page, starting at its row `row`."""

    page: int
    row: int
    start: int
    count: int


class PageTable:
    """Pages for the positions [first, end), in order, with one reference to each.

    Invariants: `first` and `end` are multiples of a page's positions; every page of the table has a reference count of
    at least 1, of which one is the table's; a page with a higher count is shared with another table and must not be
    written. A verb that raises has changed nothing.
    """

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self._size = slab.geometry.page_positions
        self._behind = 0  # pages released in front of the first
        self._pages: list[int] = []

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    @property
    def first(self) -> int:
        """The first position that has a page."""
        return self._behind * self._size

    @property
    def end(self) -> int:
        """One past the last position that has a page."""
        return (self._behind + len(self._pages)) * self._size

    def __len__(self) -> int:
        return len(self._pages)

    # -------------------------------------------------------------------------------------------- verbs

    def begin_at(self, position: int) -> None:
        """Make an empty table begin with the page of `position`; the pages before it were released elsewhere."""
        if self._pages:
            raise InvariantError(f"A table with pages from {self.first} on was to begin at {position}.")
        self._behind = position // self._size

    def adopt(self, pages: Sequence[int], behind: int) -> None:
        """Fill an empty table with `pages`, taking over a reference to each, after `behind` released ones."""
        self.begin_at(behind * self._size)
        self._pages = list(pages)

    def allocate(self, end: int) -> None:
        """Allocate pages for all positions before `end`. Raises SlabFull."""
        self.reserve(end, end)

    def reserve(self, start: int, end: int) -> None:
        """Allocate pages for all positions before `end` and make those of [start, end) private. Raises SlabFull."""
        self.accept(start, end, self.slab.allocate(self.wanted(start, end)))

    def wanted(self, start: int, end: int) -> int:
        """Return how many fresh pages `accept` needs for [start, end)."""
        return len(self._shared(start, end)) + max(0, self._page_count(end) - self._behind - len(self._pages))

    def accept(self, start: int, end: int, fresh: Sequence[int]) -> None:
        """Put in fresh pages, as many as `wanted` returned: first in place of shared ones, then at the end."""
        shared = self._shared(start, end)
        if len(fresh) != self.wanted(start, end):
            raise InvariantError(
                f"{len(fresh)} pages came for [{start}, {end}); {self.wanted(start, end)} were wanted."
            )
        for place, page in zip(shared, fresh, strict=False):
            self.slab.copy(self._pages[place], page)
        replaced = [self._pages[place] for place in shared]
        for place, page in zip(shared, fresh, strict=False):
            self._pages[place] = page
        self._pages += fresh[len(shared) :]
        self.slab.free(replaced)

    def truncate(self, length: int) -> None:
        """Free the pages wholly at or beyond `length`. At 0 the table is empty and begins at position 0 again."""
        keep = max(0, self._page_count(length) - self._behind)
        dropped, self._pages = self._pages[keep:], self._pages[:keep]
        if not length:
            self._behind = 0
        self.slab.free(dropped)

    def release_before(self, position: int) -> None:
        """Free the pages wholly before `position`. They do not come back: `first` moves on."""
        count = min(max(0, position // self._size - self._behind), len(self._pages))
        dropped, self._pages = self._pages[:count], self._pages[count:]
        self._behind += count
        self.slab.free(dropped)

    def share(self) -> PageTable:
        """Return another table of the same pages, with its own reference to each."""
        self.slab.share(self._pages)
        twin = type(self)(self.slab)
        twin._behind, twin._pages = self._behind, list(self._pages)
        return twin

    def free(self) -> None:
        """Free every page."""
        dropped, self._pages, self._behind = self._pages, [], 0
        self.slab.free(dropped)

    # ------------------------------------------------------------------------------------------ reading

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the positions [start, end) page by page. Raises InvariantError where a page is missing."""
        if start < end and (start < self.first or end > self.end):
            raise InvariantError(
                f"Positions [{start}, {end}) were asked for; there are pages for [{self.first}, {self.end})."
            )
        while start < end:
            number, row = divmod(start, self._size)
            count = min(self._size - row, end - start)
            yield Piece(page=self._pages[number - self._behind], row=row, start=start, count=count)
            start += count

    def is_private(self, start: int, end: int) -> bool:
        """True if [start, end) may be written: it has pages, and no other table holds them."""
        return self.first <= start and end <= self.end and not self._shared(start, end)

    def check(self) -> None:
        """Raise InvariantError if a page occurs twice, or is free in the slab."""
        if len(set(self._pages)) != len(self._pages):
            raise InvariantError(f"A page occurs twice in {self._pages}.")
        if unheld := [page for page in self._pages if not self.slab.references(page)]:
            raise InvariantError(f"Pages {unheld} are in a table, and free in the slab.")

    def _page_count(self, length: int) -> int:
        return -(-length // self._size)

    def _shared(self, start: int, end: int) -> list[int]:
        """Return the table indices of the shared pages that overlap [start, end)."""
        if start >= end:
            return []
        places = range(
            max(0, start // self._size - self._behind), min(self._page_count(end) - self._behind, len(self._pages))
        )
        return [place for place in places if self.slab.references(self._pages[place]) > 1]
