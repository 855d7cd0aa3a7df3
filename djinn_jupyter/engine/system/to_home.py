"""The move of a tensor to another device, between the homes of one model's layers. All such moves are made here."""

from __future__ import annotations

import torch
from torch import Tensor


def to_home(tensor: Tensor, home: torch.device) -> Tensor:
    """Return the tensor on `home`, bit for bit; the tensor itself where it is there already."""
    return tensor if tensor.device == home else tensor.to(home)
