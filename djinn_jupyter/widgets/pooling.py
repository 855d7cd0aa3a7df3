"""Pictures of values that the engine has pooled, and the words for what was read and how it was pooled."""

from __future__ import annotations

from djinn_jupyter.client.arrays import shared_numpy
from djinn_jupyter.widgets.pictures import Picture, as_rows, share_cells, signed_cells
from djinn_jupyter.widgets.spelling import figure, shape
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.pooling import Pooled, PooledHeads
from djinn_jupyter.wire.sites import Site


def whole_picture(pooled: Pooled, site: Site) -> Picture:
    """Return the picture of all positions that were read."""
    return _drawn(pooled, site, pooled.cells, pooled.rows_per_cell)


def signed_picture(pooled: Pooled) -> Picture:
    """Return the same picture in colours of signed numbers, whatever the site is."""
    return signed_cells(as_rows(shared_numpy(pooled.cells)), pooled.rows_per_cell, pooled.columns_per_cell)


def picture_alone(pooled: Pooled, site: Site) -> Picture:
    """Return the picture of the positions that were asked for alone; of all where each has a row already."""
    return whole_picture(pooled, site) if pooled.alone is None else _drawn(pooled, site, pooled.alone, 1)


def _drawn(pooled: Pooled, site: Site, cells: Array, rows_per_cell: int) -> Picture:
    of_cells = share_cells if site.point == "pattern" else signed_cells
    return of_cells(as_rows(shared_numpy(cells)), rows_per_cell, pooled.columns_per_cell)


def read_of(pooled: Pooled | None) -> str | None:
    """Spell what a pooled picture was read from: the value, its range, and how the pixels differ from it. None where
    each number has a pixel."""
    return None if pooled is None else _read_of(pooled, pooled)


def read_of_heads(pooled: Pooled | None) -> str | None:
    """Spell the same for the pictures of single heads."""
    return None if pooled is None or pooled.heads is None else _read_of(pooled, pooled.heads)


def _read_of(pooled: Pooled, drawn: Pooled | PooledHeads) -> str | None:
    if drawn.rows_per_cell == drawn.columns_per_cell == 1:
        return None
    read = f"read from {pooled.dtype} {shape(pooled.shape)}"
    if pooled.lowest is not None and pooled.highest is not None:
        read += f" between {figure(pooled.lowest)} and {figure(pooled.highest)}"
    if pooled.not_finite:
        read += f", {pooled.not_finite:,} not finite"
    return read if drawn.cells.dtype == pooled.dtype else f"{read}; pixels rounded to {drawn.cells.dtype}"
