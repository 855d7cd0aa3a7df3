"""The division of a model's layers among several devices: in order, each filled to the same share of its room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.weights.placement import WeightSizes
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused

STEPS = 64  # of halving: shares are then told apart to the last bit


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """`homes` has each layer's device, in order; `free` has the bytes that each device has left for pages. The first
    device also has what is in no layer: embedding, final norm and head."""

    homes: tuple[torch.device, ...]
    free: dict[torch.device, int]

    def line(self) -> str:
        """Return the plan in one sentence."""
        counts = [(device, len(list(layers))) for device, layers in groupby(self.homes)]
        parts, begin = [], 0
        for device, count in counts:
            parts.append(f"layers {begin} to {begin + count - 1} on {device}")
            begin += count
        return f"{', '.join(parts)}; embedding and head on {counts[0][0]}".capitalize()


def plan_cards(sizes: WeightSizes, allowed: Sequence[tuple[torch.device, int]]) -> CardPlan:
    """Return the plan that leaves the fullest device emptiest, as a share of the bytes `allowed` on each. Raises
    ModelDoesNotFit where the weights fill one of them. Every device has a layer at least."""
    devices = [device for device, _ in allowed]
    if len(sizes.layers) < len(devices):
        raise ModelDoesNotFit(f"{len(devices)} devices were named for {len(sizes.layers)} layers; name fewer.")
    rooms = [max(1, room) for _, room in allowed]  # a device without room is refused below
    low, high = 0.0, float(sizes.total) / min(rooms) + 1
    for _ in range(STEPS):
        share = (low + high) / 2
        low, high = (low, share) if _filled(sizes, rooms, share) else (share, high)
    counts = _filled(sizes, rooms, high)
    assert counts is not None, "at the highest share the first device holds all"
    homes = tuple(device for device, count in zip(devices, counts, strict=True) for _ in range(count))
    held = dict.fromkeys(devices, 0)
    held[devices[0]] = sizes.rest
    for home, size in zip(homes, sizes.layers, strict=True):
        held[home] += size
    free = {device: room - held[device] for device, room in allowed}
    for device, room in allowed:
        if free[device] <= 0:
            raise ModelDoesNotFit(
                f"The weights take {spell_bytes(held[device])} on {device}, of {spell_bytes(room)} there: name more "
                "devices, or allow more with --device-memory; layers do not stream to several devices."
            )
    return CardPlan(homes=homes, free=free)


def _filled(sizes: WeightSizes, rooms: Sequence[int], share: float) -> list[int] | None:
    """Return the layers of each device where none is filled beyond `share`, as many as go on each but one at least for
    every later one; None where that does not hold all."""
    counts, at, layers = list[int](), 0, sizes.layers
    for number, room in enumerate(rooms):
        left, begin = share * room - (0 if number else sizes.rest), at
        last = len(layers) - (len(rooms) - 1 - number)
        while at < last and layers[at] <= left:
            left, at = left - layers[at], at + 1
        if at == begin:
            return None
        counts.append(at - begin)
    return counts if at == len(layers) else None


def spread(model: nn.Module, layers: Sequence[nn.Module], homes: Sequence[torch.device]) -> None:
    """Move each layer to its home and all other modules to the first. Raises ModelRefused where layers on two devices
    share a tensor."""
    placed: dict[int, torch.device] = {}
    for layer, home in zip(layers, homes, strict=True):
        for module in layer.modules():
            _place(module, home, placed, type(model).__name__)
    inside = {module for layer in layers for module in layer.modules()}
    for module in model.modules():
        if module not in inside:
            _place(module, homes[0], placed, type(model).__name__)


def _place(module: nn.Module, home: torch.device, placed: dict[int, torch.device], name: str) -> None:
    for one in _own(module):
        if placed.setdefault(id(one), home) != home:
            raise ModelRefused(f"{name} cannot lie on several devices: layers of two of them share a tensor.")

    def moved(tensor: Tensor) -> Tensor:
        return to_home(tensor, home)

    module._apply(moved, recurse=False)
    placed.update({id(one): home for one in _own(module)})


def _own(module: nn.Module) -> list[Tensor]:
    return [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]
