"""Values pooled for a picture, and their figures, where they are: what leaves the device is as much as a view draws.

A picture is pooled alike over every connection: one that depended on its speed would be another one on another day."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from djinn_jupyter.engine.system.arrays import dtype_name, to_array
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import StopIdentity, ValueExactness
from djinn_jupyter.wire.readings import Figures, FiguresRead, Pooled, PooledHeads, ReadPooled, Strongest
from djinn_jupyter.wire.sites import Site

CHUNK: Final = 2**22  # numbers that are pooled at once: pooling makes a few copies of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfPass:
    """Values at a site of a stopped pass, [positions, ...], and their source."""

    stop: StopIdentity
    site: Site
    axes: str
    value: Tensor
    positions: tuple[int, ...]
    exactness: ValueExactness


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledTensor:
    """`cells` [rows, columns] in the dtype of a view; and for all values the finite range (None where none is finite)
    and the count of non-finite ones."""

    cells: Tensor
    rows_per_cell: int
    columns_per_cell: int
    lowest: float | None
    highest: float | None
    not_finite: int


def pooled_for(request: ReadPooled, part: PartOfPass) -> Pooled:
    """Return the requested part of a pass. UsageError for missing heads' mean, InvalidEdit for a missing position."""
    value = _mean_of_heads(part) if request.mean_of_heads else part.value
    whole = pooled(value, request.rows, request.columns, rounded=request.rounded)
    return Pooled(
        site=str(part.site),
        cells=to_array(whole.cells),
        rows_per_cell=whole.rows_per_cell,
        columns_per_cell=whole.columns_per_cell,
        alone=_alone(value, part, request),
        last=to_array(part.value[-request.last :]) if request.last else None,
        mean_of_heads=request.mean_of_heads,
        axes=part.axes,
        shape=tuple(part.value.shape),
        positions=part.positions,
        dtype=dtype_name(part.value.dtype),
        lowest=whole.lowest,
        highest=whole.highest,
        not_finite=whole.not_finite,
        stop=part.stop,
        exactness=part.exactness,
        heads=_heads(part, request),
        strongest=_strongest_of(part, request),
    )


def _heads(part: PartOfPass, request: ReadPooled) -> PooledHeads | None:
    if not request.heads or not has_heads(part.axes):
        return None
    first = range(min(part.value.shape[1], request.most_heads))
    side = max(1, math.isqrt(request.heads // len(first)))
    found = [pooled(part.value[:, head], side, side, rounded=request.rounded) for head in first]
    return PooledHeads(
        cells=to_array(torch.stack([of_head.cells for of_head in found])),
        heads=tuple(first if part.site.selector is None else part.site.selector[: len(first)]),
        rows_per_cell=found[0].rows_per_cell,
        columns_per_cell=found[0].columns_per_cell,
    )


def _strongest_of(part: PartOfPass, request: ReadPooled) -> Strongest | None:
    if not request.strongest or not has_heads(part.axes):
        return None
    values = part.value[-request.strongest_at :]
    places = values.float().neg().sort(dim=-1, stable=True).indices[..., : request.strongest]
    return Strongest(places=to_array(places.int()), values=to_array(values.gather(-1, places)))


def has_heads(axes: str) -> bool:
    """Return whether the axis after the positions counts heads."""
    return axes.startswith("T H")


def _mean_of_heads(part: PartOfPass) -> Tensor:
    value = part.value
    if not has_heads(part.axes):
        raise UsageError(f"{part.site} has no heads ({part.axes}): leave their mean out.")
    return value.mean(1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)


def _alone(value: Tensor, part: PartOfPass, request: ReadPooled) -> Array | None:
    """Return the rows of the positions that are pooled across features only."""
    if request.alone is None:
        return None
    row_of = {position: row for row, position in enumerate(part.positions)}
    absent = [position for position in request.alone if position not in row_of]
    if absent:
        raise InvalidEdit(f"Position {absent[0]} is not among those that are read: name one of them, counted from 0.")
    rows = [row_of[position] for position in request.alone]
    return to_array(pooled(value[rows], len(rows), request.columns, rounded=request.rounded).cells)


def pooled(value: Tensor, rows: int, columns: int, *, rounded: bool = True) -> PooledTensor:
    """Pool [T, ...], which is not empty, to at most `rows` by `columns` cells, as `wire.pooling` describes them."""
    flat = value.reshape(len(value), math.prod(value.shape[1:]))
    down, across = (-(-size // most) for size, most in zip(flat.shape, (rows, columns), strict=True))
    cells, figures = zip(
        *((_strongest(part, down, across), _figures(part)) for part in _chunks(flat, down)), strict=True
    )
    lows, highs, others = torch.stack(figures).unbind(1)
    return PooledTensor(
        cells=torch.cat(cells).to(dtype_of_view(value.dtype) if rounded and down * across > 1 else value.dtype),
        rows_per_cell=down,
        columns_per_cell=across,
        lowest=_finite(lows.amin()),
        highest=_finite(highs.amax()),
        not_finite=int(others.sum()),
    )


def dtype_of_view(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of pooled cells: the values' own where that has 16 bits, else bfloat16, with float32's range."""
    return dtype if dtype.itemsize <= torch.bfloat16.itemsize else torch.bfloat16


def _chunks(flat: Tensor, down: int) -> Iterator[Tensor]:
    """Yield whole blocks of rows, at least as precise as float32."""
    blocks = max(1, CHUNK // (down * flat.shape[1]))
    dtype = torch.promote_types(flat.dtype, torch.float32)
    yield from (part.to(dtype) for part in flat.split(down * blocks))


def _strongest(part: Tensor, down: int, across: int) -> Tensor:
    """Return the number of largest magnitude of each block; NaN where it holds no number."""
    rows, columns = part.shape
    padded = pad(part, (0, -columns % across, 0, -rows % down), value=math.nan)
    blocks = padded.unflatten(1, (-1, across)).unflatten(0, (-1, down))
    absent = blocks.isnan()
    high = blocks.masked_fill(absent, -math.inf).amax(dim=(1, 3))
    low = blocks.masked_fill(absent, math.inf).amin(dim=(1, 3))
    return torch.where(high >= -low, high, low).masked_fill(high < low, math.nan)


def _finite(number: Tensor) -> float | None:
    return None if number.isinf() else float(number)


def _figures(part: Tensor) -> Tensor:
    """Return the lowest and the highest finite number, and the count of others, as one tensor: one wait for the
    device."""
    finite = part.isfinite()
    low, high = part.where(finite, math.inf).amin(), part.where(finite, -math.inf).amax()
    return torch.stack([low, high, (~finite).sum()]).double()


# Figures of values, in float64, a chunk of positions at a time: a copy of all would be twice as large as the value.


def figures_for(part: PartOfPass, *, each: bool) -> FiguresRead:
    """Return the figures of a part of a pass, on request with those of each of its positions."""
    return FiguresRead(
        stop=part.stop,
        site=str(part.site),
        shape=tuple(part.value.shape),
        axes=part.axes,
        dtype=dtype_name(part.value.dtype),
        positions=part.positions,
        exactness=part.exactness,
        all=figures_of(part.value),
        each=to_array(figures_of_each(part.value)) if each else None,
    )


def figures_of(value: Tensor) -> Figures:
    """Return the figures of all numbers of [T, ...], which is not empty."""
    mean = torch.stack([part.sum() for part in chunks(value)]).sum() / value.numel()
    found = [
        torch.stack([(part - mean).square().sum(), part.square().sum(), part.amin(), part.amax()])
        for part in chunks(value)
    ]
    apart, squares, lowest, highest = torch.stack(found).unbind(1)
    std, norm = (apart.sum() / value.numel()).sqrt(), squares.sum().sqrt()
    figures = torch.stack([mean, std, lowest.amin(), highest.amax(), norm]).tolist()
    return Figures(mean=figures[0], std=figures[1], lowest=figures[2], highest=figures[3], norm=figures[4])


def figures_of_each(value: Tensor) -> Tensor:
    """Return the figures of each position, float64 [T, 5], in the order of `Figures`."""
    return torch.cat([_of_rows(part) for part in chunks(value)])


def _of_rows(rows: Tensor) -> Tensor:
    found = [
        rows.mean(1),
        rows.std(1, unbiased=False),
        rows.amin(1),
        rows.amax(1),
        torch.linalg.vector_norm(rows, dim=1),
    ]
    return torch.stack(found, dim=1)


def chunks(value: Tensor) -> Iterator[Tensor]:
    """Yield positions of [T, ...] as rows of float64."""
    flat = value.reshape(len(value), -1)
    yield from (part.double() for part in flat.split(max(1, CHUNK // flat.shape[1])))
