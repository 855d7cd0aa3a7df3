"""Convert tensors to wire arrays and back. Copies to the host; only this module turns values into bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.arrays import Array

_NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def to_array(tensor: Tensor) -> Array:
    """Return a copy of the values of `tensor`, row-major, on the host. InvalidEdit for a dtype not on the wire."""
    shared = handed_over(tensor)
    return Array(dtype=shared.dtype, shape=shared.shape, data=shared.data.tobytes())


def handed_over(tensor: Tensor) -> Array:
    """Return the values of a tensor that is not written any more: in its own memory, where that is row-major and on the
    host. Raises InvalidEdit for a dtype that the wire lacks."""
    host = tensor.detach().to("cpu").contiguous()
    if host.dtype not in _NAMES:
        raise InvalidEdit(f"Values of dtype {host.dtype} do not cross the wire.")
    data = host.reshape(-1).view(torch.uint8).numpy().data if host.numel() else b""
    return Array(dtype=_NAMES[host.dtype], shape=tuple(host.shape), data=data)


def to_tensor(array: Array) -> Tensor:
    """Return a new tensor on the host with the values of `array`; it owns its memory."""
    if array.nbytes == 0:
        return torch.empty(array.shape, dtype=_DTYPES[array.dtype])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(array.data, dtype=_DTYPES[array.dtype])
    return flat.clone().reshape(array.shape)


def tensors_within(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value` in order; skip anything else."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_within(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_within(part)
