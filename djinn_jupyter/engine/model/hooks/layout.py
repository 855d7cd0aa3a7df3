"""The layout of a site's value in the tensor that carries it: reading it, and writing it back.

Raw tensors have the model's own shape. Values have positions first: [T, D], [T, H, D] (heads) or [T, H, K] (heads,
keys); [T, S, D] where a model has several residual streams. F counts all columns of one position. Batch is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.errors import InvalidEdit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heads:
    """The columns, of the F of a position, that belong to each head and feature.

    The column of (h, d) is `offset + h * head_stride + d * feature_stride`, or `index_HD` where the strides do not fit.
    """

    heads: int
    features: int
    offset: int = 0
    head_stride: int = 0
    feature_stride: int = 1
    index_HD: Tensor | None = None

    @classmethod
    def of_index(cls, index_HD: Tensor) -> Heads:
        """Build from the column of every (head, feature), with strides where they fit."""
        heads, features = index_HD.shape
        offset = int(index_HD[0, 0])
        head_stride = int(index_HD[1, 0]) - offset if heads > 1 else features
        feature_stride = int(index_HD[0, 1]) - offset if features > 1 else 1
        ruled = cls(
            heads=heads, features=features, offset=offset, head_stride=head_stride, feature_stride=feature_stride
        )
        if min(head_stride, feature_stride) > 0 and torch.equal(ruled.columns_HD(), index_HD.cpu()):
            return ruled
        return cls(heads=heads, features=features, index_HD=index_HD.cpu())

    def columns_HD(self) -> Tensor:
        if self.index_HD is not None:
            return self.index_HD
        heads, features = torch.arange(self.heads)[:, None], torch.arange(self.features)[None]
        return self.offset + heads * self.head_stride + features * self.feature_stride

    def read(self, flat_TF: Tensor) -> Tensor:
        """Return [T, H, D], a view unless `index_HD` is used."""
        if self.index_HD is not None:
            return flat_TF[:, self.index_HD.to(flat_TF.device)]
        rows, column = flat_TF.stride()
        return flat_TF.as_strided(
            (flat_TF.shape[0], self.heads, self.features),
            (rows, self.head_stride * column, self.feature_stride * column),
            flat_TF.storage_offset() + self.offset * column,
        )

    def put(self, flat_TF: Tensor, value_THD: Tensor) -> None:
        if self.index_HD is not None:
            flat_TF[:, self.index_HD.to(flat_TF.device)] = value_THD
        else:
            self.read(flat_TF).copy_(value_THD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionLayout:
    """Positions along axis `position`. Axis `batch`, of size 1, is dropped; None where merged with positions."""

    position: int
    batch: int | None
    heads: Heads | None = None

    def read(self, raw: Tensor) -> Tensor:
        rows = self._rows(raw)
        return rows if self.heads is None else self.heads.read(rows.reshape(rows.shape[0], -1))

    def rows_in(self, raw: Tensor) -> int:
        """Return the number of positions in `raw`."""
        return raw.shape[self.position]

    def put(self, raw: Tensor, value: Tensor) -> None:
        """Write `value` into `raw` in place."""
        rows = self._rows(raw)
        if self.heads is None:
            rows.copy_(value)
            return
        flat_TF = rows.reshape(rows.shape[0], -1)
        self.heads.put(flat_TF, value)
        if flat_TF.data_ptr() != rows.data_ptr():
            rows.copy_(flat_TF.reshape(rows.shape))

    def by_line(self, raw: Tensor) -> Tensor:
        """Return `raw` with lines along its first axis and positions along its second, a view: [B, T, D], or
        [B, T, S, D] where a model has several residual streams."""
        return raw if self.batch is None else raw.movedim((self.batch, self.position), (0, 1))

    def of_lines(self, lines_BTD: Tensor) -> Tensor:
        """Return the model's own shape of such a tensor, a view."""
        return lines_BTD if self.batch is None else lines_BTD.movedim((0, 1), (self.batch, self.position))

    def _rows(self, raw: Tensor) -> Tensor:
        if self.batch is None:
            return raw.movedim(self.position, 0)
        line, axis = raw.select(self.batch, 0), self.position - (self.batch < self.position)
        return line.movedim(axis, 0) if axis else line


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Maps:
    """Attention maps [..., H, T, K] of one session; all axes before T together are the heads."""

    def read(self, raw: Tensor) -> Tensor:
        return raw.reshape(-1, *raw.shape[-2:]).transpose(0, 1)

    def rows_in(self, raw: Tensor) -> int:
        return raw.shape[-2]

    def put(self, raw: Tensor, value: Tensor) -> None:
        raw.copy_(value.transpose(0, 1).reshape(raw.shape))


Layout = PositionLayout | Maps


def written(layout: Layout, raw: Tensor, value: Tensor, site: str) -> Tensor:
    """Return a copy of `raw` with `value` in it; columns outside this layout stay as they are."""
    fresh = raw.clone(memory_format=torch.contiguous_format)
    there = layout.read(fresh)
    if value.shape != there.shape:
        raise InvalidEdit(f"The value of {site} has shape {tuple(there.shape)}, not {tuple(value.shape)}.")
    if isinstance(layout, PositionLayout) and layout.heads is None:
        there.copy_(value)  # a view
    else:
        layout.put(fresh, value.to(raw))
    return fresh


def laid_as(value: Tensor, met: Tensor) -> Tensor:
    """Return a copy of `value` with the memory layout of `met`, which has the same shape: kernels round differently for
    other strides, such as those of half of a fused projection."""
    if value.stride() == met.stride() or 0 in met.stride():
        return value.clone()
    return torch.empty_strided(met.shape, met.stride(), dtype=value.dtype, device=value.device).copy_(value)
