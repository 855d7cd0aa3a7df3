"""The result of a search for points: a tensor at a module's border, or one inside an attention module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord
from djinn_jupyter.engine.model.discovery.recording import Call
from djinn_jupyter.engine.model.hooks.call_forms import TensorKey
from djinn_jupyter.engine.model.hooks.layout import Heads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleTensor:
    """The tensor at `key` of a module's input or output. `heads` is set where it is divided into heads."""

    module: nn.Module
    side: Literal["input", "output"]
    key: TensorKey
    heads: Heads | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inner:
    """The `ordinal`-th call of a family of torch functions while `module` runs, or the keys it passes to the cache."""

    module: nn.Module
    family: Literal["softmax", "product", "sdpa", "cache"]
    ordinal: int = 0


FoundPoints = dict[str, ModuleTensor | Inner | str]
"""Points of one layer; a string is the reason why a point is absent."""


def output_of(record: LayerRecord, call: Call, heads: Heads | None = None) -> ModuleTensor | str:
    """Return the first output of a module, or a reason unless the layer calls that module once."""
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    key = next(iter(call.outputs))
    return ModuleTensor(module=call.module, side="output", key=key, heads=heads)


def input_of(record: LayerRecord, call: Call, heads: Heads | None = None) -> ModuleTensor | str:
    """Return the first floating argument of a module, or a reason unless the layer calls that module once."""
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    key = next((key for key, seen in call.inputs.items() if seen.floating), None)
    if key is None:
        return f"{type(call.module).__name__} is given no activations"
    return ModuleTensor(module=call.module, side="input", key=key, heads=heads)


def added_as_it_is(point: str, scale: float = 1.0) -> str:
    """Return the reason why a point has no norm behind it: it is added to the residual, times `scale`."""
    scaled = f" times {scale:g}" if scale != 1.0 else ""
    return f"{point}{scaled} is what is added to the residual"
