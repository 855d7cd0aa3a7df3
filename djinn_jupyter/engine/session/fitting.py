"""From the matrices of an adapter's files to products beside a model's modules: paths, shapes and numbers are checked
first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.added.low_rank import LowRank
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.adapters import AdaptedModule
from djinn_jupyter.wire.arrays import Array

FLOATING: Final = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A module that an adapter changes, found in the model; its product is computed in `dtype` on `home`."""

    given: AdaptedModule
    module: nn.Module
    home: torch.device
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The bytes that its two matrices take on the device."""
        return sum(math.prod(one.shape) for one in (self.given.down, self.given.up)) * self.dtype.itemsize

    def on_device(self) -> LowRank:
        """Return the product with its matrices on the device. Raises UsageError where numbers are not finite."""
        down, up = (self._moved(name, one) for name, one in (("A", self.given.down), ("B", self.given.up)))
        return LowRank(path=self.given.path, module=self.module, down_RI=down, up_OR=up, factor=self.given.factor)

    def _moved(self, name: str, array: Array) -> torch.Tensor:
        with torch.inference_mode(False):  # autograd may meet it later
            tensor = to_tensor(array).to(device=self.home, dtype=self.dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"lora_{name} of {self.given.path} has NaN or infinity, so the adapter computes nothing.")
        return tensor


def fitted(forward: Forward, modules: Sequence[AdaptedModule]) -> list[Fitted]:
    """Return where each part of an adapter goes. Raises UsageError where this is no adapter of the model."""
    found = list(_found(forward, modules))
    twice = next((one for one in found if sum(other.module is one.module for other in found) > 1), None)
    if twice is not None:
        raise UsageError(f"The adapter changes {twice.given.path} twice.")
    return found


def _found(forward: Forward, modules: Sequence[AdaptedModule]) -> Iterator[Fitted]:
    described = {one.path: one for one in forward.anatomy.modules}
    for given in modules:
        there = described.get(given.path)
        if there is None:
            near = get_close_matches(given.path, described, n=1)
            raise UsageError(
                f"The adapter is of another model: it changes {given.path}, and this one has no such module"
                f"{f' (the nearest is {near[0]})' if near else ''}."
            )
        if there.layer is None:
            raise UsageError(
                f"The adapter changes {given.path}, which lies in no layer; adapters of layers are computed here."
            )
        if not there.called:
            raise UsageError(f"The adapter changes {given.path}, which this model does not call by itself.")
        module = forward.model.get_submodule(given.path)
        yield _fitted(given, module, forward.home_at(there.layer))


def _fitted(given: AdaptedModule, module: nn.Module, home: torch.device) -> Fitted:
    if not isinstance(module, nn.Linear | Conv1D):
        raise UsageError(
            f"The adapter changes {given.path}, a {type(module).__name__}; those of linear modules are computed here."
        )
    weight = module.weight
    if not weight.dtype.is_floating_point or weight.dtype.itemsize == 1:
        raise UsageError(
            f"The adapter changes {given.path}, whose weights are {str(weight.dtype).removeprefix('torch.')}; those of "
            "weights in 16 bits or more are computed here."
        )
    outputs, inputs = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]
    _require_shapes(given, inputs, outputs)
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return Fitted(given=given, module=module, home=home, dtype=dtype)


def _require_shapes(given: AdaptedModule, inputs: int, outputs: int) -> None:
    down, up = given.down.shape, given.up.shape
    rank = down[0] if down else 0
    for name, array, wanted in (("A", given.down, (rank, inputs)), ("B", given.up, (outputs, rank))):
        if array.dtype not in FLOATING:
            raise UsageError(f"lora_{name} of {given.path} is of dtype {array.dtype}; it has to be a floating one.")
        if array.shape != wanted or not rank:
            raise UsageError(
                f"The adapter is of another model: lora_A and lora_B of {given.path} have shapes {list(down)} and "
                f"{list(up)}, and the module takes {inputs} numbers and makes {outputs}."
            )
    if not math.isfinite(given.factor):
        raise UsageError(f"The factor of {given.path} is {given.factor}; it has to be a finite number.")
