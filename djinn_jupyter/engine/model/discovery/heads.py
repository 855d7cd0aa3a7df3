"""Find the columns of a module's output that are the queries, keys or values that attention gets.

Shapes: target_BHD as attention gets it, flat_BF a module's output, for B one-token prompts at position 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

_AGREE = 1 - 1e-4  # cosine over B prompts; at B = 16 unrelated columns stay far below it


def columns_by_bits(target_BHD: Tensor, flat_BF: Tensor) -> Tensor | None:
    """Return the column of every (head, feature) [H, D], where all of `target` is found bit for bit, else None."""
    if flat_BF.dtype != target_BHD.dtype:
        return None
    known: dict[bytes, list[int]] = {}
    for column, key in enumerate(_keys(flat_BF)):
        known.setdefault(key, []).append(column)
    heads, features = target_BHD.shape[1:]
    found: list[int] = []
    for key in _keys(target_BHD.reshape(target_BHD.shape[0], -1)):
        candidates = known.get(key)
        if not candidates:
            return None
        following = found[-1] + 1 if found else candidates[0]
        found.append(following if following in candidates else candidates[0])
    return torch.tensor(found).reshape(heads, features)


def columns_by_factor(target_BHD: Tensor, flat_BF: Tensor) -> Tensor | None:
    """Return the same where attention gets one constant times the columns (a scale, a rotary with a magnitude)."""
    heads, features = target_BHD.shape[1:]
    if flat_BF.shape[1] < features:
        return None
    source, lengths = _unit(flat_BF.float())
    index, factors = [], []
    for head in range(heads):
        wanted, sizes = _unit(target_BHD[:, head].float())
        agreement, columns = (wanted.T @ source).max(1)
        if float(agreement.min()) < _AGREE:
            return None
        index.append(columns)
        factors.append(sizes / lengths[columns])
    ratio = torch.cat(factors)
    return torch.stack(index) if float(ratio.max() / ratio.min()) < 1.02 else None


def distinct(index_HD: Tensor) -> Tensor:
    """Return the distinct heads: keys that a model repeats for every query head are one head."""
    rows = list(dict.fromkeys(tuple(row) for row in index_HD.tolist()))
    return torch.tensor(rows)


def flat(value: Tensor) -> Tensor:
    """Return [B, F] of a one-token tensor whose first axis is the batch."""
    return value.reshape(value.shape[0], -1)


def _keys(flat_BF: Tensor) -> list[bytes]:
    """Return the bits of each column; -0.0 counts as 0.0."""
    columns = (flat_BF + 0.0).T.contiguous()
    return [bytes(row) for row in columns.view(torch.uint8).numpy()]


def _unit(columns_BF: Tensor) -> tuple[Tensor, Tensor]:
    lengths = columns_BF.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)
    return columns_BF / lengths, lengths
