"""The names of nnterp's StandardizedTransformer, the same for every family: `model.layers_output[5]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.nnsight.locations import PROBABILITIES, Locations
from djinn_jupyter.wire.nouns import ModelDescription

OF_LAYERS: Final = {"layers_input": "input", "layers_output": "output", "attention_probabilities": PROBABILITIES}
OF_MODULES: Final = {
    "attentions_input": "attn_in",
    "attentions_output": "attn_out",
    "mlps_input": "mlp_in",
    "mlps_output": "mlp_out",
}


@dataclass(frozen=True, slots=True)
class NamedValues:
    """The values of the trace that runs, as bare tensors, by the names of their locations."""

    locations: Locations
    description: ModelDescription

    def read(self, name: str) -> Tensor:
        return self.locations.named(name).form.tensor_in(Mediator.value(name))

    def assign(self, name: str, value: Tensor) -> None:
        Mediator.swap(name, self.locations.named(name).form.filled(value))

    def module_of(self, point: str) -> str:
        """Return the path of the module whose input or output a point is, below its layer or in the model. UsageError
        where there is no such module."""
        there = next(one for one in self.description.points if one.point == point)
        if there.module is None:
            why = there.absent or "its layers have it at different modules"
            raise UsageError(f"This model has no one {point}: {why}.")
        return there.module


@dataclass(frozen=True, slots=True)
class ByLayer:
    """A value that every layer has: in a trace it is read, and assigned, by the layer's number."""

    values: NamedValues
    names: tuple[str, ...]

    def __getitem__(self, layer: int) -> Tensor:
        return self.values.read(self.names[layer])

    def __setitem__(self, layer: int, value: Tensor) -> None:
        self.values.assign(self.names[layer], value)

    def __len__(self) -> int:
        return len(self.names)


class OfLayers:
    """An attribute of the model that is read by layer."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, owner: type) -> Any:
        if model is None:
            return self
        values: NamedValues = model.named_values
        if self._name in OF_LAYERS:
            below = OF_LAYERS[self._name]
        else:
            below = f"{values.module_of(OF_MODULES[self._name])}.{self._name.rpartition('_')[2]}"
        return ByLayer(values, tuple(f"{path}.{below}" for path in values.locations.layers))


class NnterpNames:
    """The attributes of nnterp's models that nnsight's lack."""

    layers_input, layers_output = OfLayers(), OfLayers()
    attentions_input, attentions_output = OfLayers(), OfLayers()
    mlps_input, mlps_output = OfLayers(), OfLayers()
    attention_probabilities = OfLayers()
    named_values: NamedValues

    @property
    def num_layers(self) -> int:
        return len(self.named_values.locations.layers)

    @property
    def token_embeddings(self) -> Tensor:
        """The output of the embedding, in a trace."""
        return self.named_values.read(self._embedding)

    @token_embeddings.setter
    def token_embeddings(self, value: Tensor) -> None:
        self.named_values.assign(self._embedding, value)

    @property
    def logits(self) -> Tensor:
        """The logits that the model returns, in a trace."""
        return self.named_values.read(f"{self.named_values.locations.root}.output")

    @logits.setter
    def logits(self, value: Tensor) -> None:
        self.named_values.assign(f"{self.named_values.locations.root}.output", value)

    @property
    def _embedding(self) -> str:
        values = self.named_values
        return f"{values.locations.root}.{values.module_of('embed')}.output"
