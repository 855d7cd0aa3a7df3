"""Values as an engine pools them for the pictures of a card, by the pooling of the views themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.widgets import pictures
from djinn_jupyter.wire.readings import Pooled, PooledHeads, ReadPooled, Strongest
from tests.widgets.samples import STOP


def pooled(
    values: np.ndarray, positions: Sequence[int] | None = None, *, alone: Sequence[int] | None = None, **changes: object
) -> Pooled:
    """What an engine sends for the pictures of a card, of a value [positions, ...]."""
    positions = tuple(range(len(values)) if positions is None else positions)
    flat = pictures.as_rows(values)
    cells, down, across = pictures.pooled(flat)
    rows = None if alone is None else pictures.pooled(flat[[positions.index(p) for p in alone]], len(alone))[0]
    fields = {
        "site": "resid_post.4",
        "cells": from_numpy(cells),
        "rows_per_cell": down,
        "columns_per_cell": across,
        "alone": None if rows is None else from_numpy(rows),
        "last": None,
        "mean_of_heads": False,
        "axes": "T D",
        "shape": values.shape,
        "positions": positions,
        "dtype": "float32",
        "lowest": float(values.min()),
        "highest": float(values.max()),
        "not_finite": 0,
        "stop": STOP,
        "exactness": "exact",
        **changes,
    }
    return Pooled(**fields)


def heads_of(pattern: np.ndarray, asked: ReadPooled) -> dict[str, object]:
    """What an engine sends of the heads of a pattern [queries, heads, keys] that is smaller than a picture."""
    late = pattern[-asked.strongest_at :]
    places = np.argsort(-late, axis=-1, kind="stable")[..., : asked.strongest]
    shown = pattern.transpose(1, 0, 2)[: asked.most_heads]
    numbers = tuple(range(len(shown)))
    return {
        "heads": PooledHeads(cells=from_numpy(shown), heads=numbers, rows_per_cell=1, columns_per_cell=1),
        "strongest": Strongest(
            places=from_numpy(places.astype(np.int32)), values=from_numpy(np.take_along_axis(late, places, -1))
        ),
    }
