"""Check the whole accounting: every slab against every cache that holds its pages. The engine calls it when idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.storages import Storage
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.system.invariant_error import InvariantError


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
