"""The distinct weights of a model: tied parameters are one weight, with every parameter that shares it.

A weight that is away is replaced by a `placeholder` with the right shape, dtype and device, one element of
memory, and NaN as its values, so that computing with absent weights gives NaN and never stale bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """One tensor and the parameters that share it. `name` is its first path in the model."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    @property
    def tensor(self) -> Tensor:
        return self.parameters[0].data

    @property
    def nbytes(self) -> int:
        first = self.parameters[0]
        return first.numel() * first.element_size()

    def put(self, tensor: Tensor) -> None:
        """Set the parameters' data to `tensor`, of the same shape, dtype and device."""
        for parameter in self.parameters:
            parameter.data = tensor

    def leave(self) -> None:
        """Replace the tensor by its `placeholder`."""
        self.put(placeholder(self.tensor))


def weights_of(module: nn.Module) -> tuple[Weight, ...]:
    """Return the weights of all parameters within `module`, in the order of the module tree."""
    found: dict[tuple[object, ...], tuple[str, list[nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        where = parameter.data_ptr() or id(parameter)  # no address on the meta device, nor for an empty tensor
        key = (where, parameter.shape, parameter.stride(), parameter.dtype)
        found.setdefault(key, (name, []))[1].append(parameter)
    return tuple(Weight(name=name, parameters=tuple(group)) for name, group in found.values())


def buffer_bytes(module: nn.Module) -> int:
    """Return the bytes of the buffers within `module`, each counted once. They are small and stay on the device."""
    return sum({buffer.data_ptr(): buffer.nbytes for buffer in module.buffers()}.values())


def total_bytes(weights: Iterable[Weight]) -> int:
    return sum(weight.nbytes for weight in weights)


def placeholder(like: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a tensor like `like` that is one expanded element: NaN, or the least number of a dtype without NaN."""
    least = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min
    with torch.inference_mode(False):
        return torch.full((1,) * like.ndim, least, dtype=like.dtype, device=device or like.device).expand(like.shape)


def raw_sum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bits read as integers, as a checksum. Reads it once, at memory speed."""
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(tensor.detach().view(wide[tensor.element_size()]).sum(dtype=torch.int64))
