"""numpy arrays as torch tensors and back, bit for bit, bfloat16 too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

Values = np.ndarray[Any, Any]


def to_tensor(values: Values) -> Tensor:
    """Return a tensor of these values on the host: in their memory where that may be written, else in its own."""
    if not (values.flags.writeable and values.flags.c_contiguous):
        values = np.array(values, copy=True, order="C")
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def to_values(tensor: Tensor) -> Values:
    """Return the values of a tensor, copied to the host where it is elsewhere."""
    host = tensor.detach().to("cpu").contiguous()
    if host.dtype is torch.bfloat16:
        bits: Values = host.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    values: Values = host.numpy()
    return values
