"""Hooks that give each layer its arguments on the layer's own device, where a model's layers lie on several.

The embedding, the masks, the rotary tables, the final norm and the head are on the first device, and so is what the
last layer returns. A model whose layers are all on one device has no such hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.system.device_limit import make_current
from djinn_jupyter.engine.system.nested import tensors_within
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import ModelRefused


class Crossing:
    """Moves what layers are given to one device, `home`, each tensor once a pass. A copy lives as long as the tensor
    that it was made of, and no longer than until the next pass."""

    def __init__(self, home: torch.device) -> None:
        self.home = home
        self._moved: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def begin(self) -> None:
        """Forget the copies of the pass before: its tensors may have been written since."""
        self._moved.clear()

    def arguments(self, value: Any) -> Any:
        """Return arguments with their tensors on the home. Raises ModelRefused for a mapping by which layers on other
        devices share tensors: copies of it would differ."""
        if isinstance(value, Tensor):
            return self._at_home(value)
        if type(value) in (tuple, list):
            return type(value)(map(self.arguments, value))
        if isinstance(value, Mapping) and any(one.device != self.home for one in tensors_within(value)):
            raise ModelRefused("Its layers share tensors in a mapping, so they cannot lie on several devices.")
        return value

    def _at_home(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.home:
            return tensor
        key = id(tensor)
        if key not in self._moved:
            gone = weakref.ref(tensor, lambda _: self._moved.pop(key, None) and None)
            self._moved[key] = gone, to_home(tensor, self.home)
        return self._moved[key][1]


def cross(layers: Sequence[nn.Module], homes: Sequence[torch.device]) -> None:
    """Install the hooks on layers of which each lies on the device in `homes`, in order. Each makes its own device the
    current one, also the first's: a pass that was left elsewhere has not done so."""
    first, crossings = homes[0], {home: Crossing(home) for home in homes}
    for index, (layer, home) in enumerate(zip(layers, homes, strict=True)):
        if home == first:
            layer.register_forward_pre_hook(_on(first))
        else:
            begins = homes[index - 1] != home
            layer.register_forward_pre_hook(_entering(crossings[home], begins), with_kwargs=True)
    if homes[-1] != first:
        layers[-1].register_forward_hook(_leaving(crossings[first]))


def _on(home: torch.device) -> Any:
    def enter(layer: nn.Module, args: Any) -> None:
        make_current(home)

    return enter


def _entering(crossing: Crossing, begins: bool) -> Any:
    def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        make_current(crossing.home)
        if begins:
            crossing.begin()
        moved = {
            name: value if isinstance(value, Cache) else crossing.arguments(value) for name, value in kwargs.items()
        }
        return crossing.arguments(args), moved

    return enter


def _leaving(crossing: Crossing) -> Any:
    def leave(layer: nn.Module, args: Any, output: Any) -> Any:
        make_current(crossing.home)
        crossing.begin()
        return crossing.arguments(output)

    return leave
