"""What a layer sees as its cache while lines of any lengths run their next position together: rows in columns.

Every line's rows end at the same column, so that all append theirs in one; a shorter line begins behind empty columns,
which the model's own masks leave out.

Shapes: B lines, H key-value heads, C columns, D features of a head, n layers of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, cache_utils

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry

ROOM: Final = 64  # columns for new positions, or a quarter of those there if that is more
Pair = tuple[Tensor, Tensor]


def bytes_of(geometry: CacheGeometry, lengths: Sequence[int]) -> int:
    """Return the bytes that the columns of lines of these lengths take."""
    return len(lengths) * _capacity(lengths) * sum(group.position_bytes for group in geometry.groups)


def _capacity(lengths: Sequence[int]) -> int:
    longest = max(lengths)
    return longest + max(ROOM, longest // 4)


class Columns:
    """The keys and values of `caches`, whose committed rows it copies once; `end` is the column of the next ones."""

    def __init__(self, geometry: CacheGeometry, caches: Sequence[PagedCache], device: torch.device) -> None:
        lengths = [cache.length for cache in caches]
        self.end, self.capacity = max(lengths), _capacity(lengths)
        self.first = [self.end - length for length in lengths]  # the column of each line's first position
        self.runs: list[list[Pair]] = [
            [
                (
                    _zeros((run.layers, len(caches), run.kv_heads, self.capacity, run.key_dim), run.dtype, device),
                    _zeros((run.layers, len(caches), run.kv_heads, self.capacity, run.value_dim), run.dtype, device),
                )
                for run in group.runs
            ]
            for group in geometry.groups
        ]
        self.of_layer: dict[int, Pair] = {
            layer.cache_layer: (keys[slot - run.first], values[slot - run.first])
            for group, pairs in zip(geometry.groups, self.runs, strict=True)
            for run, (keys, values) in zip(group.runs, pairs, strict=True)
            for slot, layer in enumerate(group.layers)
            if run.first <= slot < run.first + run.layers
        }
        for line, cache in enumerate(caches):
            self._copy(line, cache)

    @property
    def lengths(self) -> list[int]:
        return [self.end - first for first in self.first]

    @property
    def full(self) -> bool:
        return self.end == self.capacity

    def mask(self) -> Tensor | None:
        """Return which columns each line has, with the next one, [B, C]; None where all have all."""
        if not any(self.first):
            return None
        keys = next(iter(self.of_layer.values()))[0]
        columns = torch.arange(self.end + 1, device=keys.device)
        return (columns >= torch.tensor(self.first, device=keys.device)[:, None]).to(torch.long)

    def put(self, line: int, cache: PagedCache) -> None:
        """Append the line's newest row to its cache, whose pages have room for it."""
        cache.append([[(k[:, line, :, self.end], v[:, line, :, self.end]) for k, v in run] for run in self.runs])

    def advance(self) -> None:
        """Count the newest rows of all lines."""
        self.end += 1

    def _copy(self, line: int, cache: PagedCache) -> None:
        cache.drop_working()
        for group, pairs in zip(cache.groups, self.runs, strict=True):
            for piece in group.table.pieces(max(group.table.first, group.known_from), cache.length):
                column = self.first[line] + piece.start
                for number, pair in enumerate(pairs):
                    for paged, rows in zip(group.slab.run_views(piece.page, number), pair, strict=True):
                        rows[:, line].narrow(2, column, piece.count).copy_(paged.narrow(2, piece.row, piece.count))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros: what a mask leaves out is multiplied by 0, and must not be NaN."""
    return torch.zeros(shape, dtype=dtype, device=device)


class ColumnLayer(cache_utils.CacheLayerMixin):
    """One layer of a ColumnCache. A window is kept by the masks, which the model makes from columns."""

    def __init__(self, index: int, columns: Columns, sliding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.index, self.columns, self.is_sliding, self.is_initialized = index, columns, sliding, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Write the next row of every line. Return the columns that attention reads, k_BHCD and v_BHCD."""
        keys, values = self.columns.of_layer[self.index]
        end = self.columns.end
        keys.narrow(2, end, 1).copy_(key_states)
        values.narrow(2, end, 1).copy_(value_states)
        return keys.narrow(2, 0, end + 1), values.narrow(2, 0, end + 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns.end + query_length, 0

    def get_seq_length(self) -> int:
        return self.columns.end

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...


class ColumnCache(Cache):
    """The cache of lines that run their next position together."""

    def __init__(self, config: PreTrainedConfig, columns: Columns) -> None:
        plain = DynamicCache(config=config).layers
        super().__init__(
            layers=[
                ColumnLayer(index, columns, type(layer) is cache_utils.DynamicSlidingWindowLayer)
                for index, layer in enumerate(plain)
            ]
        )
