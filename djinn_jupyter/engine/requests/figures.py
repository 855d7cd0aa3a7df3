"""Figures of values, in float64, a chunk of positions at a time: a copy of all would be twice as large as the value."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from djinn_jupyter.engine.requests.pooling import CHUNK, PartOfPass
from djinn_jupyter.engine.system.arrays import dtype_name, to_array
from djinn_jupyter.wire.figures import Figures, FiguresRead


def figures_for(part: PartOfPass, *, each: bool) -> FiguresRead:
    """Return the figures of a part of a pass, and of each of its positions where they are asked for."""
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
    apart, squares, lowest, highest = torch.stack([_of_chunk(part, mean) for part in chunks(value)]).unbind(1)
    std, norm = (apart.sum() / value.numel()).sqrt(), squares.sum().sqrt()
    found = torch.stack([mean, std, lowest.amin(), highest.amax(), norm]).tolist()
    return Figures(mean=found[0], std=found[1], lowest=found[2], highest=found[3], norm=found[4])


def _of_chunk(part: Tensor, mean: Tensor) -> Tensor:
    return torch.stack([(part - mean).square().sum(), part.square().sum(), part.amin(), part.amax()])


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
