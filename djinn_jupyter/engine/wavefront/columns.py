"""The cache that a layer sees while lines of any lengths run their next positions together: rows in columns.

Every line's rows end at the same column, so that all append theirs from one on; a shorter line begins behind empty
columns, which the model's own masks leave out. Lines without rows, before their prompts, begin in the first column.

Shapes: B lines, H key-value heads, C columns, D features of a head, n layers of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Final

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.wavefront.column_memory import ColumnMemory, Pair
from djinn_jupyter.engine.wavefront.shared_cache import MaskedLayer, slides

ROOM: Final = 64  # columns for new positions, or a quarter of those there if that is more


def capacity_for(lengths: Sequence[int], to_come: int | None = None) -> int:
    """Return the columns of lines of these lengths, with room for new positions: for those `to_come`, where they are
    fewer. Rows lie the nearer to each other the fewer columns there are, and attention reads them the faster."""
    longest = max(lengths)
    room = max(ROOM, longest // 4)
    return longest + (room if to_come is None else max(1, min(room, to_come)))


class Columns:
    """The keys and values of lines, in `memory` on the devices of their layers. `end` is the column of the next ones.
    Columns that no line has been given are not written: zeros in them, for 32 lines, take as long as a layer."""

    def __init__(self, memory: ColumnMemory, lengths: Sequence[int], capacity: int) -> None:
        self.memory, self.end, self.capacity = memory, max(lengths), capacity
        self.first = [self.end - length for length in lengths]  # the column of each line's first position
        self.runs = memory.runs(len(lengths), capacity)
        self.of_layer: dict[int, Pair] = {
            layer.cache_layer: (keys[slot - run.first], values[slot - run.first])
            for group, pairs in zip(memory.geometry.groups, self.runs, strict=True)
            for run, (keys, values) in zip(group.runs, pairs, strict=True)
            for slot, layer in enumerate(group.layers)
            if run.first <= slot < run.first + run.layers
        }

    def fill(self, caches: Sequence[PagedCache]) -> None:
        """Copy the committed rows of each line from its pages."""
        for line, cache in enumerate(caches):
            self.copy(line, cache)

    def part(self, first: int, behind: int) -> Columns:
        """Return the lines from `first` on that come before that number, as columns whose rows lie in these."""
        part = copy(self)
        part.first = self.first[first:behind]
        part.runs = [[(k[:, first:behind], v[:, first:behind]) for k, v in run] for run in self.runs]
        part.of_layer = {index: (k[first:behind], v[first:behind]) for index, (k, v) in self.of_layer.items()}
        return part

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
        device = self.memory.device  # on which the model makes masks
        columns = torch.arange(self.end + 1, device=device)
        return (columns >= torch.tensor(self.first, device=device)[:, None]).to(torch.long)

    def put(self, line: int, cache: PagedCache, count: int = 1) -> None:
        """Append the line's newest `count` rows to its cache, whose pages have room for them."""
        new = slice(self.end, self.end + count)
        cache.append([[(k[:, line, :, new], v[:, line, :, new]) for k, v in run] for run in self.runs], count)

    def advance(self, count: int = 1) -> None:
        """Count the newest rows of all lines."""
        self.end += count

    @contextmanager
    def ending(self, end: int) -> Iterator[None]:
        """Have the next rows come at another column inside this block."""
        before, self.end = self.end, end
        try:
            yield
        finally:
            self.end = before

    def copy(self, line: int, cache: PagedCache) -> None:
        """Copy the committed rows of a line from its pages. Below them are zeros: what a mask leaves out is multiplied
        by 0, and must not be NaN."""
        cache.drop_working()
        for group, pairs in zip(cache.groups, self.runs, strict=True):
            first = max(group.table.first, group.known_from)
            for rows in (rows for pair in pairs for rows in pair):
                rows[:, line, :, : self.first[line] + first].zero_()
            for piece in group.table.pieces(first, cache.length):
                column = self.first[line] + piece.start
                for number, pair in enumerate(pairs):
                    for paged, rows in zip(group.slab.run_views(piece.page, number), pair, strict=True):
                        rows[:, line].narrow(2, column, piece.count).copy_(paged.narrow(2, piece.row, piece.count))


class ColumnLayer(MaskedLayer):
    """One layer of a ColumnCache."""

    def __init__(self, index: int, columns: Columns, sliding: bool) -> None:
        super().__init__(index, sliding)
        self.columns, self.leaves = columns, False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Write the next rows of every line. Return the columns that attention reads, k_BHCD and v_BHCD; where it
        `leaves`, leave the pass instead."""
        keys, values = self.columns.of_layer[self.index]
        end, count = self.columns.end, key_states.shape[2]
        keys.narrow(2, end, count).copy_(key_states)
        values.narrow(2, end, count).copy_(value_states)
        if self.leaves:
            raise Leave
        return keys.narrow(2, 0, end + count), values.narrow(2, 0, end + count)

    def get_seq_length(self) -> int:
        return self.columns.end


class ColumnCache(Cache):
    """The cache of lines that run their next positions together."""

    def __init__(self, config: PreTrainedConfig, columns: Columns) -> None:
        self.columns = columns
        self._columned = [ColumnLayer(index, columns, sliding) for index, sliding in enumerate(slides(config))]
        super().__init__(layers=list(self._columned))

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Leave the pass behind the next update inside this block."""
        for layer in self._columned:
            layer.leaves = True
        try:
            yield
        finally:
            for layer in self._columned:
                layer.leaves = False
