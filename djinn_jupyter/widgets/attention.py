"""A pattern as a card draws it: heads in cells, and the keys that the last queries weigh most. It is made of the whole
value, or of what the engine pooled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.arrays import shared_numpy
from djinn_jupyter.api.stops import PatternCells
from djinn_jupyter.widgets.pictures import Picture, Pixels, as_rows, pooled, share_cells
from djinn_jupyter.wire.readings import Pooled

HEADS_SHOWN: Final = 16
STRONGEST: Final = 3
QUERIES: Final = 16
CELLS: Final = 2**17  # 8 heads have 128 a side, as many as a picture has pixels
PATTERN_CELLS: Final = PatternCells(heads=HEADS_SHOWN, cells=CELLS, strongest=STRONGEST, queries=QUERIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """`cells` are [heads, rows, columns] of the first heads, each pooled alone. `places` are the indices of the keys
    with the largest weights, `weights` those, both [queries, heads, entries] of the last queries; the largest are
    first."""

    cells: Pixels
    rows_per_cell: int
    columns_per_cell: int
    places: NDArray[np.generic]
    weights: NDArray[np.generic]

    @classmethod
    def of(cls, values: NDArray[np.generic]) -> Attention:
        """Return the drawing of a whole pattern [queries, heads, keys]."""
        heads = [pooled(as_rows(values[:, head])) for head in range(min(values.shape[1], HEADS_SHOWN))]
        late = np.asarray(values[-QUERIES:], dtype=np.float32)
        places = np.argsort(-late, axis=-1, kind="stable")[..., :STRONGEST]
        return cls(
            cells=np.stack([cells for cells, _, _ in heads]),
            rows_per_cell=heads[0][1],
            columns_per_cell=heads[0][2],
            places=places,
            weights=np.take_along_axis(late, places, axis=-1),
        )

    @classmethod
    def pooled(cls, read: Pooled) -> Attention:
        """Return the drawing of what the engine pooled."""
        assert read.heads is not None
        assert read.strongest is not None
        cells = shared_numpy(read.heads.cells)
        return cls(
            cells=as_rows(cells).reshape(cells.shape),
            rows_per_cell=read.heads.rows_per_cell,
            columns_per_cell=read.heads.columns_per_cell,
            places=shared_numpy(read.strongest.places),
            weights=shared_numpy(read.strongest.values),
        )

    @property
    def is_whole(self) -> bool:
        """True where each weight has a cell of its own."""
        return self.rows_per_cell == self.columns_per_cell == 1

    def picture(self, index: int) -> Picture:
        """Return the picture of a head."""
        return share_cells(self.cells[index], self.rows_per_cell, self.columns_per_cell)

    def strongest(self, query: int, index: int) -> list[tuple[int, float]]:
        """Return (index of the key, weight) of a head at one of the last queries, the largest weight first."""
        found = zip(self.places[query, index], self.weights[query, index], strict=True)
        return [(int(place), float(weight)) for place, weight in found]
