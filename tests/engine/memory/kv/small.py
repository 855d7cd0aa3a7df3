"""Small page groups for tests of the accounting: three layers of two shapes, two positions to a page."""

from __future__ import annotations

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.memory.kv.pages import PageTable
from djinn_jupyter.engine.memory.kv.slab import Slab

CPU = torch.device("cpu")
GEOMETRY = GroupGeometry.lay_out(
    [
        LayerGeometry(cache_layer=0, kind="full", kv_heads=2, key_dim=4, value_dim=4, dtype=torch.float32),
        LayerGeometry(cache_layer=3, kind="full", kv_heads=2, key_dim=4, value_dim=4, dtype=torch.float32),
        LayerGeometry(cache_layer=4, kind="full", kv_heads=1, key_dim=8, value_dim=2, dtype=torch.bfloat16),
    ],
    page_positions=2,
)


def slab(pages: int = 12, segment_pages: int = 4) -> Slab:
    """Room for so many pages; freed ones turn into NaN."""
    return Slab(GEOMETRY, CPU, pages * GEOMETRY.page_bytes, segment_pages=segment_pages, poison=True)


def row(table: PageTable, position: int) -> list[Tensor]:
    """The keys [H, D] and values [H, D] of every layer at a position, as views."""
    (piece,) = table.pieces(position, position + 1)
    views = [
        view(piece.page, layer.cache_layer)
        for layer in GEOMETRY.layers
        for view in (table.slab.key_view, table.slab.value_view)
    ]
    return [view[:, piece.row] for view in views]


def write(table: PageTable, start: int, end: int, value: float) -> None:
    """Make [start, end) the table's own and fill it: the value itself in the keys, its opposite in the values."""
    table.reserve(start, end)
    for position in range(start, end):
        for number, view in enumerate(row(table, position)):
            view.fill_(-value if number % 2 else value)
    for piece in table.pieces(start, end):
        table.slab.wrote(piece.page)


def read(table: PageTable, position: int) -> float:
    """The value that `write` left at a position; fails unless every layer holds it."""
    rows = row(table, position)
    value = float(rows[0].flatten()[0])
    for number, view in enumerate(rows):
        assert torch.equal(view, torch.full_like(view, -value if number % 2 else value)), (position, number, view)
    return value


class CopiesNothing(PageTable):
    """Broken on purpose: writes shared pages."""

    def _shared(self, start, end):
        return []


class CopiesTheTailOnly(PageTable):
    """Broken on purpose: of the pages a pass overlaps, only the last is copied."""

    def _shared(self, start, end):
        return super()._shared(start, end)[-1:]


def build_working(cache: PagedCache) -> None:
    """Gather the working copies for the next position, as the next pass would."""
    for group in cache.groups:
        group.prepare(cache.length, cache.length + 1)
