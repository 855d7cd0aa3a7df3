"""Committed rows of one layer: read, and single ones replaced on private copies of their pages.

Shapes: n positions, H key-value heads, D features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.group_cache import GroupCache
from djinn_jupyter.engine.memory.kv.layers import PagedRows
from djinn_jupyter.engine.system.invariant_error import InvariantError


def readable(cache: PagedCache, layer: int) -> range:
    """Return the committed positions of which a cache layer still has the rows."""
    group = _group(cache, layer)
    return range(min(cache.length, max(group.table.first, group.known_from)), cache.length)


def read_rows(cache: PagedCache, layer: int, positions: Sequence[int], *, keys: bool) -> Tensor:
    """Return a copy of the keys or values [n, H, D] of a cache layer at these positions."""
    group = _group(cache, layer)
    group.flush()
    return torch.stack([_row(group, layer, position, keys).clone() for position in positions])


def whole_rows(cache: PagedCache, layer: int) -> tuple[Tensor, Tensor]:
    """Return copies of the keys [1, H, n, Dk] and values [1, H, n, Dv] of a cache layer at all committed positions,
    none of which may have been released."""
    group = _group(cache, layer)
    group.flush()
    pieces = list(group.table.pieces(0, cache.length))
    keys, values = (
        torch.cat([view(piece.page, layer).narrow(1, piece.row, piece.count) for piece in pieces], 1)[None]
        for view in (group.slab.key_view, group.slab.value_view)
    )
    return keys, values


def replace_rows(cache: PagedCache, layer: int, positions: Sequence[int], rows_nHD: Tensor, *, keys: bool) -> None:
    """Put other keys or values there. Pages that another cache holds too are copied first. Raises SlabFull; no row has
    changed then."""
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
    if not isinstance(held, PagedRows) or held.rows is None:
        raise InvariantError(f"Cache layer {layer} has no rows.")
    return held.rows.group


def _row(group: GroupCache, layer: int, position: int, keys: bool) -> Tensor:
    (piece,) = group.table.pieces(position, position + 1)
    view = group.slab.key_view if keys else group.slab.value_view
    return view(piece.page, layer).select(1, piece.row)
