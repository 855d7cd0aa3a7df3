"""The used fraction of streamed bytes: layers of a mixture of experts stream whole, and each token uses a few experts.

An expert module is recognised by its structure: its matrices are stacked along one first axis, and it is called with
integers that index that axis. Without such a module, no fraction is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Experts:
    """One expert module, with the set of its experts chosen since the layer arrived."""

    def __init__(self, module: nn.Module, count: int, nbytes: int) -> None:
        self.count, self.nbytes, self.known = count, nbytes, False
        self._chosen: Tensor | None = None
        module.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for given in (*args, *kwargs.values()):
            if isinstance(given, Tensor) and given.dtype in (torch.int64, torch.int32):
                if self._chosen is None:
                    self._chosen = torch.zeros(self.count, dtype=torch.bool, device=given.device)
                self._chosen.index_fill_(0, given.reshape(-1).long(), True)
                self.known = True

    def take(self) -> Tensor | float:
        """Return the share of experts not chosen, as a device tensor (0.0 if unseen), and reset the set."""
        if self._chosen is None:
            return 0.0
        unused = 1.0 - self._chosen.float().mean()
        self._chosen = None
        return unused


class RoutedUse:
    """Use of one streamed layer of `nbytes`. Call `arrived` whenever the layer is taken."""

    def __init__(self, layer: nn.Module, nbytes: int) -> None:
        self.nbytes = nbytes
        self._experts = [
            _Experts(module, *stacked) for module in layer.modules() if (stacked := _stacked(module)) is not None
        ]
        self._generation: int | None = None
        self.arrivals = 0
        self._unused: Tensor | float = 0.0

    def arrived(self, generation: int) -> None:
        """Count an arrival. A layer taken again in the same generation was moved once, and all its choices count."""
        if generation == self._generation:
            return
        if self._generation is not None:
            self.arrivals += 1
            for experts in self._experts:
                self._unused = self._unused + experts.take() * experts.nbytes
        self._generation = generation

    @property
    def known(self) -> bool:
        return any(experts.known for experts in self._experts)

    @property
    def unused(self) -> float:
        """Bytes that arrived and were not used, over all completed arrivals."""
        return float(self._unused)


def used_fraction(layers: Sequence[RoutedUse]) -> float | None:
    """Return the used fraction of the arrived bytes; None where no layer's choices are visible or nothing arrived."""
    arrived = sum(layer.arrivals * layer.nbytes for layer in layers)
    if not arrived or not any(layer.known for layer in layers):
        return None
    return 1.0 - sum(layer.unused for layer in layers) / arrived


def _stacked(module: nn.Module) -> tuple[int, int] | None:
    """Return number and bytes of the experts of a module whose own parameters are all stacked along one first axis."""
    own = list(module.parameters(recurse=False))
    stacks = {parameter.shape[0] for parameter in own}
    if not own or len(stacks) != 1 or not any(parameter.ndim == 3 for parameter in own):
        return None
    count = stacks.pop()
    return (count, sum(parameter.numel() * parameter.element_size() for parameter in own)) if count > 1 else None
