"""The device memory that the pages of one group are cut from: segments, reference counts, views. Knows no session.

Shapes: S pages of a segment, n layers of a run, H key-value heads, P positions of a page, D features of a head.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire.nouns import SlabStatistics

from .budget import BooksBroken, Budget, Copy, mebibytes
from .geometry import GroupGeometry, Run

SEGMENT_BYTES = 64 << 20
POISON = 0xFF  # every float made of these bytes is NaN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One allocation. `keys[r]` and `values[r]` are views `knHPD_S` [S, n, H, P, D] of run r."""

    storage: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def pages(self) -> int:
        return self.storage.shape[0]


class Slab:
    """Pages of one group, `uint8[pages, page_bytes]`, in segments that come and go with the demand.

    Invariants: a page is free or has a reference count of at least 1, never both; a verb that raises has changed
    nothing; a page's bytes are the holder's alone to write while its count is 1, and nobody's while it is more.
    Page numbers are stable: page p lies in segment p // segment_pages. A segment may be shorter than that where the
    budget ran out. Freed memory goes back to the device only by `shrink`, which on CUDA waits for the device.
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
        self.segment_pages = segment_pages or max(1, SEGMENT_BYTES // geometry.page_bytes)
        self.poison = poison
        self._segments: dict[int, Segment] = {}
        self._free: list[int] = []  # a heap: the lowest pages are used first, so that the last segments empty
        self._references: dict[int, int] = {}
        self._lent: dict[object, int] = {}
        self._slot = {layer.cache_layer: slot for slot, layer in enumerate(geometry.layers)}
        self.budget.register(self, self._empty_segments_bytes, self.shrink)

    # -------------------------------------------------------------------------------------------- pages

    def allocate(self, pages: int) -> list[int]:
        """So many pages, each with a reference count of 1 and undefined contents. Raises SlabFull."""
        if pages > len(self._free):
            self._grow(pages - len(self._free), asked=pages)
        taken = [heapq.heappop(self._free) for _ in range(pages)]
        self._references.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each page."""
        for page, times in self._held(pages).items():
            self._references[page] += times

    def free(self, pages: Iterable[int]) -> None:
        """One reference less to each page; a page without any is free."""
        for page, times in self._held(pages).items():
            self._references[page] -= times
            if not self._references[page]:
                del self._references[page]
                heapq.heappush(self._free, page)
                if self.poison:
                    self.bytes_of(page).fill_(POISON)

    def references(self, page: int) -> int:
        """How many hold this page; 0 when it is free."""
        return self._references.get(page, 0)

    def copy(self, source: int, target: int) -> None:
        """All bytes of a page into another, on the device's current stream."""
        self.bytes_of(target).copy_(self.bytes_of(source))

    def _held(self, pages: Iterable[int]) -> Counter[int]:
        wanted = Counter(pages)
        for page, times in wanted.items():
            if self.references(page) < times:
                raise BooksBroken(f"Page {page} has {self.references(page)} references; {times} were spoken of.")
        return wanted

    # -------------------------------------------------------------------------------------------- views

    def bytes_of(self, page: int) -> Tensor:
        """All bytes of a page, `uint8[page_bytes]`."""
        return self._segments[page // self.segment_pages].storage[page % self.segment_pages]

    def run_views(self, page: int, run: int) -> tuple[Tensor, Tensor]:
        """Keys [n, H, P, Dk] and values [n, H, P, Dv] of a run's layers in a page."""
        segment, place = self._segments[page // self.segment_pages], page % self.segment_pages
        return segment.keys[run][place], segment.values[run][place]

    def key_view(self, page: int, layer: int) -> Tensor:
        """Keys [H, P, Dk] of a cache layer in a page."""
        run, place = self._run_of(layer)
        return self.run_views(page, run)[0][place]

    def value_view(self, page: int, layer: int) -> Tensor:
        """Values [H, P, Dv] of a cache layer in a page."""
        run, place = self._run_of(layer)
        return self.run_views(page, run)[1][place]

    def _run_of(self, layer: int) -> tuple[int, int]:
        slot = self._slot[layer]
        for number, run in enumerate(self.geometry.runs):
            if slot < run.first + run.layers:
                return number, slot - run.first
        raise BooksBroken(f"Layer {layer} is in no run of its group.")

    # ----------------------------------------------------------------------------------------- segments

    def _grow(self, short: int, asked: int) -> None:
        """Segments for at least `short` more pages, the last one as large as the budget allows."""
        size, free = self.geometry.page_bytes, len(self._free)
        held = len(self._references)
        try:
            self.budget.take(short * size, by=self)
        except SlabFull as error:
            raise SlabFull(
                f"Asked for {asked} pages of {mebibytes(size)}; {free} are free and {held} in use, and the limit is "
                f"{mebibytes(self.budget.limit)} for all. Close a session, or allow more device memory."
            ) from error
        more = min(-short % self.segment_pages, self.budget.free // size)
        self.budget.take(more * size, by=self)
        try:
            self._add_segments(short + more)
        except RuntimeError as error:  # torch has no narrower class for it on the CPU
            raise SlabFull(f"The device refused {mebibytes((short + more) * size)} for pages: {error}") from error

    def _add_segments(self, pages: int) -> None:
        """Allocate what the budget has just granted; what the device refuses is given back to the budget."""
        left = pages
        try:
            while left:
                count = min(left, self.segment_pages)
                segment = _segment(self.geometry, count, self.device)
                if self.poison:
                    segment.storage.fill_(POISON)
                number = next(n for n in range(len(self._segments) + 1) if n not in self._segments)
                self._segments[number] = segment
                for page in range(number * self.segment_pages, number * self.segment_pages + count):
                    heapq.heappush(self._free, page)
                left -= count
        finally:
            self.budget.give_back(left * self.geometry.page_bytes)

    def shrink(self) -> int:
        """Release the segments that hold no page in use; bytes released.

        On CUDA this waits for the device, and returns to other programs what working copies gave up, too.
        """
        empty = self._empty_segments()
        released = sum(self._segments.pop(number).storage.nbytes for number in empty)
        self._free = [page for page in self._free if page // self.segment_pages not in empty]
        heapq.heapify(self._free)
        self.budget.give_back(released)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return released

    def _empty_segments(self) -> set[int]:
        return self._segments.keys() - {page // self.segment_pages for page in self._references}

    def _empty_segments_bytes(self) -> int:
        return sum(self._segments[number].storage.nbytes for number in self._empty_segments())

    # ------------------------------------------------------------------------------------ working copies

    def lend(self, owner: object, copy: Copy) -> None:
        """Count a working copy of this group's rows against the budget. Raises SlabFull."""
        self.budget.lend(owner, copy)
        self._lent[owner] = copy.size

    def reclaim(self, owner: object) -> None:
        self.budget.reclaim(owner)
        del self._lent[owner]

    # -------------------------------------------------------------------------------------------- books

    @property
    def pages_in_use(self) -> int:
        return len(self._references)

    @property
    def segment_bytes(self) -> int:
        return sum(segment.storage.nbytes for segment in self._segments.values())

    @property
    def working_bytes(self) -> int:
        return sum(self._lent.values())

    def statistics(self) -> SlabStatistics:
        return SlabStatistics(
            pages=sum(segment.pages for segment in self._segments.values()),
            pages_free=len(self._free),
            pages_shared=sum(count > 1 for count in self._references.values()),
            page_bytes=self.geometry.page_bytes,
            bytes_allocated=self.segment_bytes,
            bytes_limit=self.budget.limit,
            working_copies=len(self._lent),
            working_bytes=self.working_bytes,
        )

    def check(self) -> None:
        """Raise BooksBroken unless every page is free or referenced, not both, and the sums add up."""
        every = {
            page
            for number, segment in self._segments.items()
            for page in range(number * self.segment_pages, number * self.segment_pages + segment.pages)
        }
        free = Counter(self._free)
        if twice := [page for page, times in free.items() if times > 1]:
            raise BooksBroken(f"Pages free more than once: {twice}.")
        if both := free.keys() & self._references.keys():
            raise BooksBroken(f"Pages both free and in use: {sorted(both)}.")
        if lost := every ^ (free.keys() | self._references.keys()):
            raise BooksBroken(f"Pages neither free nor in use, or of no segment: {sorted(lost)}.")
        if wrong := {page: count for page, count in self._references.items() if count < 1}:
            raise BooksBroken(f"Pages in use by nobody: {wrong}.")


def _segment(geometry: GroupGeometry, pages: int, device: torch.device) -> Segment:
    storage = uninitialised((pages, geometry.page_bytes), torch.uint8, device)
    with torch.inference_mode(False):  # a view of another dtype made inside it could not be written outside
        views = [_run_views(storage, run, geometry.page_positions) for run in geometry.runs]
    return Segment(storage=storage, keys=tuple(k for k, _ in views), values=tuple(v for _, v in views))


def _run_views(storage: Tensor, run: Run, page_positions: int) -> tuple[Tensor, Tensor]:
    """The keys [S, n, H, P, Dk] and values [S, n, H, P, Dv] of a run in all pages of a segment."""
    rows = storage[:, run.offset : run.offset + page_positions * run.position_bytes].view(run.dtype)
    layers = rows.unflatten(1, (run.layers, -1))
    key_size = run.kv_heads * page_positions * run.key_dim
    keys = layers[..., :key_size].unflatten(-1, (run.kv_heads, page_positions, run.key_dim))
    values = layers[..., key_size:].unflatten(-1, (run.kv_heads, page_positions, run.value_dim))
    return keys, values


def uninitialised(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An ordinary tensor, also when asked for inside an inference mode, so that it can be written in any mode."""
    with torch.inference_mode(False):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
