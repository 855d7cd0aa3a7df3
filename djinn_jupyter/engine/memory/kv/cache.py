"""A session's cache: the `Cache` given to the model's forward, with the rows in pages. Knows no gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, cache_utils

from djinn_jupyter.engine.memory.kv import geometry as states
from djinn_jupyter.engine.memory.kv import layers as paged
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, GroupKind, LayerState
from djinn_jupyter.engine.memory.kv.own_layers import is_own
from djinn_jupyter.engine.memory.kv.pages import GroupCache, LayerRows, PageTable
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import IllegalMove, SlabFull


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """Statistics of one session's cache. Shared pages count in full; `page_bytes` covers only pages on the device."""

    length: int
    pages: int
    pages_shared: int
    page_bytes: int
    working_bytes: int
    recurrent_bytes: int

    @property
    def device_bytes(self) -> int:
        return self.page_bytes + self.working_bytes + self.recurrent_bytes


class PagedCache(Cache):
    """One session's keys, values and recurrent states, bit for bit what a DynamicCache would give the model.

    A pass over the positions [start, end) is: `reserve(start, end)`, `enter(start)`, the forward, `commit(end)`. A
    stopped pass is entered again in the same way, any number of times, also after a `fork`, and its rows are rewritten.
    Rows at and beyond `length` are *in flight*: valid for the layers that ran, dead for the layers above.

    Invariants: only `commit` and `rewind` change `length`. The pages hold every row written once a verb of this class
    has returned; the working copy may be dropped between any two verbs without changing a bit. A verb that raises has
    changed nothing, except that working copies may have been dropped. Pages shared with a fork are never written: the
    cache that writes first gets private copies of all pages the pass overlaps, with their in-flight rows. Recurrent
    states change only when layers run and by `restore`; `rewind` does not touch them.
    """

    def __init__(self, model_config: PreTrainedConfig, geometry: CacheGeometry, groups: Sequence[GroupCache]) -> None:
        self.model_config = model_config
        self.geometry = geometry
        self.groups = tuple(groups)
        self.owner = self.groups[0].session if self.groups else object()
        self.length = 0
        super().__init__(layers=_layers(model_config, geometry, self.groups))
        self._paged = tuple(layer for layer in self.layers if isinstance(layer, paged.PagedRows))
        self._stateful = {index: layer for index, layer in enumerate(self.layers) if states.has_states(layer)}

    @classmethod
    def create(cls, model_config: PreTrainedConfig, geometry: CacheGeometry, slabs: Sequence[Slab]) -> PagedCache:
        """Return an empty cache. `slabs` must be those of the geometry's groups, in their order."""
        if [slab.geometry for slab in slabs] != list(geometry.groups):
            raise InvariantError("The slabs are not those of the geometry's page groups.")
        session = object()
        return cls(model_config, geometry, [GroupCache(PageTable(slab), session) for slab in slabs])

    def reserve(self, start: int, end: int, *, once: bool = False) -> None:
        """Allocate pages for a pass over [start, end), private where it writes, and a working copy if room allows,
        without reserve for growth where only this pass needs it.

        Raises SlabFull; only working copies may have been dropped then.
        """
        self.allocate(start, end)
        for group in self.groups:
            group.prepare(start, end, once=once)

    def allocate(self, start: int, end: int) -> None:
        """Allocate pages for rows [start, end), private where they are written. SlabFull leaves all as it was."""
        self._must_stand_at(start)
        drawn: list[list[int]] = []
        try:
            for group in self.groups:
                drawn.append(group.slab.allocate(group.table.wanted(start, end)))
        except SlabFull:
            for group, pages in zip(self.groups, drawn, strict=False):
                group.slab.free(pages)
            raise
        for group, pages in zip(self.groups, drawn, strict=True):
            group.flush()
            group.table.accept(start, end, pages)

    def take_working(self, other: PagedCache) -> None:
        """Take the memory of another cache's working copies for this one, which is empty, so that fresh tokens need
        none of their own. The other's rows stay in its pages."""
        for group, earlier in zip(self.groups, other.groups, strict=True):
            group.take_working(earlier)

    def append(self, rows: Sequence[Sequence[tuple[Tensor, Tensor]]], count: int) -> None:
        """Write and commit the next `count` positions, whose pages are allocated: for each group and run, keys
        [n, H, count, D] and values."""
        for group, runs in zip(self.groups, rows, strict=True):
            group.append(self.length, count, runs)
        self.commit(self.length + count)

    def bytes_wanted(self, start: int, end: int) -> int:
        """Return the bytes of fresh pages that `reserve` takes for [start, end)."""
        return sum(g.table.wanted(start, end) * g.geometry.page_bytes for g in self.groups)

    def enter(self, committed: int) -> None:
        """Set every layer's length to `committed`, also of those that ran. Call before each entry of a pass."""
        self._must_stand_at(committed)
        for layer in self._paged:
            layer.set_length(committed)

    def commit(self, length: int) -> None:
        """Write all rows to the pages and set every layer's length to `length`, also of skipped ones, after a pass."""
        for group in self.groups:
            if length > group.written:
                raise InvariantError(f"Commit of {length} positions; rows were written for {group.written}.")
            group.flush()
        self.stand_at(length)

    def may_enter(self, length: int) -> bool:
        """True if a pass entered at `length` after a `rewind` finds its rows; those behind a window may be released."""
        try:
            for group in self.groups:
                group.check_enterable(length)
        except IllegalMove:
            return False
        return length <= self.length

    def rewind(self, length: int) -> None:
        """Go back to an earlier committed length. Rows and pages stay until `truncate` or new rows."""
        if length > self.length:
            raise IllegalMove(f"Rewind to position {length}; only {self.length} are committed.")
        for group in self.groups:
            group.check_enterable(length)
        for group in self.groups:
            group.rewind(length)
        self.stand_at(length)

    def _must_stand_at(self, start: int) -> None:
        if start != self.length:
            raise IllegalMove(f"A pass cannot enter at position {start}; {self.length} are committed. Rewind first.")

    def stand_at(self, length: int) -> None:
        self.length = length
        for layer in self._paged:
            layer.set_length(length)

    def truncate(self, length: int) -> None:
        """Free the pages wholly beyond `length`. Raises IllegalMove if it lies before the committed length."""
        if length < self.length:
            raise IllegalMove(f"Truncate to position {length}; {self.length} are committed. Rewind first.")
        for group in self.groups:
            group.truncate(length)

    def release_behind(self, oldest_kept: int | None = None) -> None:
        """Free window pages that no pass entered at `length`, or at `oldest_kept` or later, can read."""
        entered = self.length if oldest_kept is None else min(self.length, oldest_kept)
        for group in self.groups:
            group.release_before(group.geometry.first_needed(entered))

    def fork(self) -> PagedCache:
        """Return a second cache at the same point: pages shared until either writes, states copied, no working copy."""
        session = object()
        taken: list[GroupCache] = []
        for group in self.groups:
            taken.append(group.fork(session))
        twin = type(self)(self.model_config, self.geometry, taken)
        twin.restore_all(self.capture_all())
        twin.stand_at(self.length)
        return twin

    def free(self) -> None:
        """Free all pages, working copies and states. The cache is then empty."""
        for group in self.groups:
            group.free()
        self.stand_at(0)
        if self._stateful:
            self.restore_all(_unused_states(self.model_config))

    def drop_working(self) -> None:
        for group in self.groups:
            group.drop_working()

    def flush(self) -> None:
        """Write the rows of a stopped pass to the pages."""
        for group in self.groups:
            group.flush()

    def capture(self, layer: int) -> LayerState | None:
        """Return a copy of a layer's states beside its rows, flags included; None for a layer without states."""
        return states.take(self.layers[layer]) if states.has_states(self.layers[layer]) else None

    def restore(self, layer: int, state: LayerState | None) -> None:
        """Restore a state that `capture` returned for this layer, here or in a fork."""
        if (state is not None) != states.has_states(self.layers[layer]):
            raise InvariantError(f"Layer {layer} and the state to be put back are not of one kind.")
        if state is not None:
            states.put(self.layers[layer], state)

    def capture_all(self) -> dict[int, LayerState]:
        return {i: states.take(layer) for i, layer in self._stateful.items()}

    def restore_all(self, captured: Mapping[int, LayerState]) -> None:
        for layer, state in captured.items():
            self.restore(layer, state)

    def adopt_states(self, states_now: Mapping[int, LayerState]) -> None:
        """Give the layers of an empty cache these states without copying them; their bytes may be away."""
        if set(states_now) != set(self.live_states()):
            raise InvariantError("The states to be taken over are not of the layers that have states.")
        for layer, state in states_now.items():
            states.put_own(self.layers[layer], state)

    def live_states(self) -> dict[int, LayerState]:
        """Return the live states that the next pass writes, not copies: for the tiers, which move their bytes."""
        return {i: states.live(layer) for i, layer in self._stateful.items()}

    @property
    def recurrent_bytes(self) -> int:
        return sum(states.nbytes(layer) for layer in self._stateful.values())

    @property
    def working_bytes(self) -> int:
        return sum(group.working.nbytes for group in self.groups if group.working is not None)

    def statistics(self) -> CacheStatistics:
        tables = [group.table for group in self.groups]
        return CacheStatistics(
            length=self.length,
            pages=sum(len(table) for table in tables),
            pages_shared=sum(table.slab.references(page) > 1 for table in tables for page in table.pages),
            page_bytes=sum(t.slab.page(page).nbytes for t in tables for page in t.pages if t.slab.page(page).resident),
            working_bytes=self.working_bytes,
            recurrent_bytes=self.recurrent_bytes,
        )

    def check(self, contents: bool = False) -> None:
        """Raise InvariantError unless tables and slabs agree; with `contents`, compare the working copy too."""
        for group in self.groups:
            group.check(contents)
            if self.length > group.written:
                raise InvariantError(f"{self.length} positions are committed; rows were written for {group.written}.")


def _layers(model_config: PreTrainedConfig, geometry: CacheGeometry, groups: Sequence[GroupCache]) -> list[Any]:
    """Return the library's own layers for this model, with those of attention replaced by paged ones."""
    library = DynamicCache(config=model_config).layers
    held = _held(groups, "full", "window")
    index_keys, index_positions = _held(groups, "index"), _held(groups, "positions")
    layers: list[Any] = []
    for index, plain in enumerate(library):
        layer = _paged(plain)
        if isinstance(layer, paged.PagedRows):
            layer.attach(geometry.layers[index], held.get(index))
        if isinstance(layer, paged.PagedIndexedLayer):
            layer.attach_indexer(index_keys.get(index), index_positions.get(index))
        layers.append(layer)
    return layers


def _held(groups: Iterable[GroupCache], *kinds: GroupKind) -> dict[int, LayerRows]:
    """Return, by cache layer, the slot of its rows in the groups of these kinds."""
    return {
        layer.cache_layer: LayerRows(group, slot)
        for group in groups
        if group.geometry.kind in kinds
        for slot, layer in enumerate(group.geometry.layers)
    }


def _paged(plain: Any) -> Any:
    match type(plain):
        case cache_utils.DynamicLayer:
            return paged.PagedFullLayer()  # type: ignore[no-untyped-call]
        case cache_utils.DynamicIndexedLayer:
            return paged.PagedIndexedLayer()  # type: ignore[no-untyped-call]
        case cache_utils.DynamicSlidingWindowLayer:
            return paged.PagedWindowLayer(plain.sliding_window)
        case cache_utils.LinearAttentionAndFullAttentionLayer:
            return paged.PagedRecurrentFullLayer(plain.number_of_states)
        case cache_utils.LinearAttentionAndSlidingWindowAttentionLayer:
            return paged.PagedRecurrentWindowLayer(plain.sliding_window, plain.number_of_states)
        case _:
            return paged.paged_own(plain) if is_own(plain) else plain


def _unused_states(model_config: PreTrainedConfig) -> dict[int, LayerState]:
    unused = [_paged(plain) for plain in DynamicCache(config=model_config).layers]
    return {i: states.take(layer) for i, layer in enumerate(unused) if states.has_states(layer)}


# Committed rows of one layer: read, and single ones replaced on private copies of their pages. Shapes: n positions, H
# key-value heads, D features of a head.


def readable(cache: PagedCache, layer: int) -> range:
    """Return the committed positions whose rows a cache layer still has."""
    group = _group(cache, layer)
    return range(min(cache.length, max(group.table.first, group.known_from)), cache.length)


def read_rows(cache: PagedCache, layer: int, positions: Sequence[int], *, keys: bool) -> Tensor:
    """Return a copy of the keys or values [n, H, D] of a cache layer at these positions."""
    group = _group(cache, layer)
    group.flush()
    return torch.stack([_row(group, layer, position, keys).clone() for position in positions])


def whole_rows(cache: PagedCache, layer: int) -> tuple[Tensor, Tensor]:
    """Return copies of the keys [1, H, n, Dk] and values [1, H, n, Dv] of a cache layer at all committed positions.
    None may have been released."""
    group = _group(cache, layer)
    group.flush()
    pieces = list(group.table.pieces(0, cache.length))
    keys, values = (
        torch.cat([view(piece.page, layer).narrow(1, piece.row, piece.count) for piece in pieces], 1)[None]
        for view in (group.slab.key_view, group.slab.value_view)
    )
    return keys, values


def replace_rows(cache: PagedCache, layer: int, positions: Sequence[int], rows_nHD: Tensor, *, keys: bool) -> None:
    """Put other keys or values there. Pages shared with another cache are copied first. SlabFull changes no row."""
    group = _group(cache, layer)
    group.drop_working()
    for position in positions:
        group.table.reserve(position, position + 1)
    for position, row_HD in zip(positions, rows_nHD, strict=True):
        _row(group, layer, position, keys).copy_(row_HD)
        (piece,) = group.table.pieces(position, position + 1)
        group.slab.wrote(piece.page)


def _group(cache: PagedCache, layer: int) -> GroupCache:
    held = cache.layers[layer]
    if not isinstance(held, paged.PagedRows) or held.rows is None:
        raise InvariantError(f"Cache layer {layer} has no rows.")
    return held.rows.group


def _row(group: GroupCache, layer: int, position: int, keys: bool) -> Tensor:
    (piece,) = group.table.pieces(position, position + 1)
    view = group.slab.key_view if keys else group.slab.value_view
    return view(piece.page, layer).select(1, piece.row)
