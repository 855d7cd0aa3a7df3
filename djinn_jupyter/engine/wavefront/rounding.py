"""Whether rows computed among others are those computed alone: asked by every trial of a family and every recheck."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# What a family raises that cannot run several lines.
REFUSALS: Final = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_ROUNDING: Final = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a row's norm; other shapes sum in another order
_COARSE: Final = 5e-2


def equal_but_for_rounding(some: Tensor, others: Tensor, computed_in: torch.dtype) -> bool:
    """Return whether each row [n, ...] of both is equal within the rounding of the dtype that it was computed in, or
    of that which it has now, where that is coarser."""
    most = max(_ROUNDING.get(computed_in, _COARSE), _ROUNDING.get(some.dtype, _COARSE))
    a, b = some.flatten(1).to(torch.float32), others.flatten(1).to(torch.float32)
    return bool(((a - b).norm(dim=1) <= most * b.norm(dim=1)).all())
