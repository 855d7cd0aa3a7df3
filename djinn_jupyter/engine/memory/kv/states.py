"""The states of a cache layer beside its rows, taken out as a value and put back: those of convolutions and
recurrences, and what a model's own class of layer keeps.

They are not idempotent: a layer that runs twice on the same token moves its state on twice. A frame therefore keeps the
states of the layers from its own on, as of their entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from transformers import cache_utils

from djinn_jupyter.engine.memory.kv.own_layers import tensors

# Everything a recurrent layer of the library holds, in this version of it: states, flags, kernel sizes.
_FIELDS = tuple(vars(cache_utils.LinearAttentionLayer()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LayerState:
    """The states and flags of one layer at one moment, also before its first use. Its tensors are nobody else's."""

    fields: tuple[tuple[str, object], ...]

    def tensors(self) -> Iterator[Tensor]:
        for _, value in self.fields:
            yield from tensors(value)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class HasFields:
    """A layer of a model's own class, of which `fields` are states beside its rows."""

    fields: tuple[str, ...] = ()


def fields_of(layer: object) -> tuple[str, ...]:
    """The names of what a layer holds beside rows."""
    if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
        return _FIELDS
    return layer.fields if isinstance(layer, HasFields) else ()


def has_states(layer: object) -> bool:
    return bool(fields_of(layer))


def take(layer: object) -> LayerState:
    """A copy: the library writes into a layer's tensors in place."""
    return LayerState(fields=tuple((name, _copied(vars(layer)[name])) for name in fields_of(layer)))


def put(layer: object, state: LayerState) -> None:
    """Make the layer as it was, with tensors of its own, so that a state can be put back any number of times."""
    for name, value in state.fields:
        setattr(layer, name, _copied(value))


def take_up(layer: object, state: LayerState) -> None:
    """Make the layer's tensors those of the state, which nobody else may have: they may be elsewhere, and come."""
    for name, value in state.fields:
        setattr(layer, name, value)


def _copied(value: object) -> object:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def nbytes(layer: object) -> int:
    """Bytes of the states a layer holds now."""
    return live(layer).nbytes


def live(layer: object) -> LayerState:
    """The layer's own tensors, which the next pass writes."""
    return LayerState(fields=tuple((name, vars(layer)[name]) for name in fields_of(layer)))
