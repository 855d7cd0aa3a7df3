"""Pages of keys and values behind the transformers `Cache`: slab, page tables, the paged cache."""

from __future__ import annotations

from .books import check_books
from .broken import BooksBroken
from .budget import Budget, Part
from .cache import CacheStatistics, PagedCache
from .geometry import CacheGeometry, GroupGeometry, LayerGeometry, probe_geometry
from .page_table import PageTable
from .slab import Slab
from .states import LayerState

__all__ = [
    "CacheGeometry",
    "GroupGeometry",
    "LayerGeometry",
    "probe_geometry",
    "Budget",
    "Part",
    "Slab",
    "PageTable",
    "PagedCache",
    "CacheStatistics",
    "LayerState",
    "BooksBroken",
    "check_books",
]
