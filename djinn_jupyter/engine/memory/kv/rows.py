"""Copy the rows of a session's cache to plain host tensors, independent of page sizes, and back into pages.

Shapes: n layers of a run, H key-value heads, T positions, D features of a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerRun
from djinn_jupyter.engine.memory.kv.pages import GroupCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.swappable import Storage
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A group's rows of the positions [first, end): keys [n, H, T, Dk] and values [n, H, T, Dv] for each run."""

    first: int
    end: int
    runs: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def empty(cls, geometry: GroupGeometry, first: int, end: int) -> Rows:
        """Allocate uninitialised rows on the host."""
        return cls(first=first, end=end, runs=tuple(_room(run, end - first) for run in geometry.runs))

    def fits(self, geometry: GroupGeometry) -> bool:
        """True if shapes and dtypes are those of rows of such a group."""
        found = [(k.shape, v.shape, k.dtype, v.dtype) for k, v in self.runs]
        return found == [_expected(run, self.end - self.first) for run in geometry.runs]


def take_rows(cache: PagedCache, end: int) -> Generator[None, None, tuple[Rows, ...]]:
    """Return copies of all available rows before `end`; yields after every page."""
    taken: list[Rows] = []
    for group in cache.groups:
        group.flush()
        here = min(end, group.written)
        first = min(here, max(group.table.first, group.known_from))
        rows = Rows.empty(group.geometry, first, here)
        yield from _move(group, rows, out=True)
        taken.append(rows)
    return tuple(taken)


def put_rows(cache: PagedCache, taken: Sequence[Rows], length: int) -> Generator[None, None, None]:
    """Fill an empty cache with rows and set its length to `length`; yields after every page.

    Raises SlabFull and leaves the cache empty then; raises InvariantError for a cache that is not empty.
    """
    if cache.length or len(taken) != len(cache.groups):
        raise InvariantError("Rows were to be put into a cache that is not empty, or has other groups.")
    try:
        for group, rows in zip(cache.groups, taken, strict=True):
            group.table.begin_at(rows.first)
            group.table.allocate(rows.end)
            group.expect_rows(rows.first, rows.end)
    except SlabFull:
        cache.free()
        raise
    for group, rows in zip(cache.groups, taken, strict=True):
        yield from _move(group, rows, out=False)
    cache.stand_at(length)


def _move(group: GroupCache, rows: Rows, *, out: bool) -> Generator[None, None, None]:
    for piece in group.table.pieces(rows.first, rows.end):
        for number, kept in enumerate(rows.runs):
            for paged, plain in zip(group.slab.run_views(piece.page, number), kept, strict=True):
                here = paged.narrow(2, piece.row, piece.count)
                there = plain.narrow(2, piece.start - rows.first, piece.count)
                there.copy_(here) if out else here.copy_(there)
        yield


def _room(run: LayerRun, count: int) -> tuple[Tensor, Tensor]:
    keys, values, dtype, _ = _expected(run, count)
    with torch.inference_mode(False):
        return torch.empty(keys, dtype=dtype), torch.empty(values, dtype=dtype)


def _expected(run: LayerRun, count: int) -> tuple[torch.Size, torch.Size, torch.dtype, torch.dtype]:
    lead = (run.layers, run.kv_heads, count)
    return torch.Size((*lead, run.key_dim)), torch.Size((*lead, run.value_dim)), run.dtype, run.dtype


def check_invariants(
    slabs: Sequence[Slab],
    caches: Iterable[PagedCache],
    contents: bool = False,
    *,
    tiers: Tiers | None = None,
    storages: Iterable[Storage] = (),
) -> None:
    """Raise InvariantError unless each page's reference count is the number of tables that hold it, and the bytes
    agree.

    `caches` must be all that exist, frames' and checkpoints' included; `slabs` all of one engine; `storages` all items
    that `tiers` keep beside pages.
    """
    held: dict[Slab, Counter[int]] = {slab: Counter() for slab in slabs}
    for cache in caches:
        cache.check(contents)
        for group in cache.groups:
            held[group.slab].update(group.table.pages)
    for slab, pages in held.items():
        slab.check(() if tiers is None else tiers.leaving)
        if wrong := {page: times for page, times in pages.items() if slab.references(page) != times}:
            raise InvariantError(f"Pages held so many times by tables, and differently in the slab: {wrong}.")
        if slab.pages_in_use != len(pages):
            raise InvariantError(f"{slab.pages_in_use} pages are in use, and tables hold {len(pages)}.")
    if tiers is not None:
        tiers.check([*(page for slab in slabs for page in slab), *storages])
    for budget in {slab.budget for slab in slabs}:
        budget.check()
