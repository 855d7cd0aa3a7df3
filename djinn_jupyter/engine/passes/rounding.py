"""The comparison of rows computed among others with those computed alone, for trials of a family and rechecks."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.system.device import to_home

# What a family raises that cannot run several lines.
REFUSALS: Final = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_ROUNDING: Final = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a row's norm; other shapes sum in another order
_OF_LOGITS: Final = {torch.float32: 1e-4, torch.float64: 1e-6}  # some 800 steps of float32
_COARSE: Final = 5e-2


def rounding_of(dtype: torch.dtype, layers: int) -> float:
    """Return by what share of its size a logit may differ among others: in a coarse dtype half a step for each of some
    eight roundings a layer, as they add up when they are independent, and at least two steps of both logits of a
    difference. Measured on a CPU, at 12 layers: 2 steps in float16, none in bfloat16; at 8 layers 2 in float32."""
    if dtype in _OF_LOGITS:
        return _OF_LOGITS[dtype]
    step = torch.finfo(dtype).eps
    return min(_COARSE, max(4.0, math.sqrt(8 * layers) / 2) * step)


def equal_but_for_rounding(some: Tensor, others: Tensor, computed_in: torch.dtype) -> bool:
    """Return whether each row [n, ...] of both is equal within the rounding of the dtype that it was computed in, or
    of that which it has now, where that is coarser. What is the same infinity or NaN in both is equal."""
    most = max(_ROUNDING.get(computed_in, _COARSE), _ROUNDING.get(some.dtype, _COARSE))
    a, b = some.flatten(1).to(torch.float32), to_home(others, some.device).flatten(1).to(torch.float32)
    finite = torch.where(b.isfinite(), b, 0.0)
    apart = difference(a, b)
    return bool(apart.isfinite().all() and (apart.norm(dim=1) <= most * finite.norm(dim=1)).all())


def difference(one: Tensor, other: Tensor) -> Tensor:
    """Return one - other, 0 where both are the same infinity or NaN, and infinity where only one is finite."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, one - other).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
