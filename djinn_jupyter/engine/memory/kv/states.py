"""The states of a cache layer beside its rows, captured as a value and restored: those of convolutions and recurrences,
and those of a model's own layer class.

They are not idempotent: a layer that runs twice on the same token advances its state twice. A frame therefore keeps the
states of its own layer and all later ones, as of their entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from transformers import cache_utils

from djinn_jupyter.engine.memory.kv.own_layers import tensors

# All attributes of the library's recurrent layer, in its installed version: states, flags, kernel sizes.
_FIELDS = tuple(vars(cache_utils.LinearAttentionLayer()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LayerState:
    """The states and flags of one layer at one moment, also before its first use. `take` makes it own its tensors."""

    fields: tuple[tuple[str, object], ...]

    def tensors(self) -> Iterator[Tensor]:
        for _, value in self.fields:
            yield from tensors(value)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class HasFields:
    """A layer of a model's own class; `fields` names its states beside its rows."""

    fields: tuple[str, ...] = ()


def fields_of(layer: object) -> tuple[str, ...]:
    """Return the names of the attributes that a layer holds beside its rows."""
    if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
        return _FIELDS
    return layer.fields if isinstance(layer, HasFields) else ()


def has_states(layer: object) -> bool:
    return bool(fields_of(layer))


def take(layer: object) -> LayerState:
    """Return a copy of the layer's states; the library writes into a layer's tensors in place."""
    return LayerState(fields=tuple((name, _copied(vars(layer)[name])) for name in fields_of(layer)))


def put(layer: object, state: LayerState) -> None:
    """Restore the layer's states from copies of their tensors, so that a state can be put back any number of times."""
    for name, value in state.fields:
        setattr(layer, name, _copied(value))


def take_up(layer: object, state: LayerState) -> None:
    """Give the layer the state's own tensors, without a copy. No other layer may hold them; their bytes may be away."""
    for name, value in state.fields:
        setattr(layer, name, value)


def _copied(value: object) -> object:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def nbytes(layer: object) -> int:
    """Return the bytes of the states that a layer holds now."""
    return live(layer).nbytes


def live(layer: object) -> LayerState:
    """Return the layer's own tensors, not copies; the next pass writes them."""
    return LayerState(fields=tuple((name, vars(layer)[name]) for name in fields_of(layer)))
