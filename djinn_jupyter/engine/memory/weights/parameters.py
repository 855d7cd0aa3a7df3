"""The distinct weights of a model: tied parameters are one weight, with every parameter that shows it.

A weight that is away leaves a hollow behind: right shape, dtype and device, no memory, and not a number in it, so that
whoever computes with what is not there gets NaN and never stale bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """One tensor and the parameters that are it. `name` is the first path by which the model knows it."""

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
        """From now on the parameters are `tensor`, of the same shape, dtype and device."""
        for parameter in self.parameters:
            parameter.data = tensor

    def leave(self) -> None:
        """Forget the tensor; a hollow stays in its place."""
        self.put(hollow(self.tensor))


def weights_of(module: nn.Module) -> tuple[Weight, ...]:
    """The weights of all parameters within `module`, in the order of the module tree."""
    found: dict[tuple[object, ...], tuple[str, list[nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        where = parameter.data_ptr() or id(parameter)  # none on the meta device, and of an empty tensor
        key = (where, parameter.shape, parameter.stride(), parameter.dtype)
        found.setdefault(key, (name, []))[1].append(parameter)
    return tuple(Weight(name=name, parameters=tuple(group)) for name, group in found.values())


def buffer_bytes(module: nn.Module) -> int:
    """Bytes of the buffers within `module`, each once. They are small and stay."""
    return sum({buffer.data_ptr(): buffer.nbytes for buffer in module.buffers()}.values())


def total_bytes(weights: Iterable[Weight]) -> int:
    return sum(weight.nbytes for weight in weights)


def hollow(like: Tensor, device: torch.device | None = None) -> Tensor:
    """One element in place of all: NaN, or the least number of a dtype that has no NaN."""
    least = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min
    with torch.inference_mode(False):
        return torch.full((1,) * like.ndim, least, dtype=like.dtype, device=device or like.device).expand(like.shape)


def raw_sum(tensor: Tensor) -> int:
    """The sum of a tensor's bits read as integers: what tells it from another one. Reads it once, at memory speed."""
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(tensor.detach().view(wide[tensor.element_size()]).sum(dtype=torch.int64))
