"""A model's number of layers and positions, checked against the configuration: before its engine is started where its
config.json is on this machine, and of every engine once it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.baselines.sources import source_of
from djinn_evaluation.configuration.whitebox import Whitebox
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.model_files import path_called

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
POSITIONS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`layers` and `positions` are None where unknown. `require_*` raise UsageError where the model does not fit."""

    name: str
    layers: int | None = None
    positions: int | None = None

    def require_count(self, expected: int | None) -> None:
        if expected is not None and self.layers not in (None, expected):
            raise UsageError(f"model.num_layers is {expected}; {self.name} has {self.layers} layers.")

    def require_layers(self, named: Mapping[str, int]) -> None:
        """Require that the model has each layer; `named` maps a key of the configuration to its layer."""
        for key, layer in named.items():
            if self.layers is not None and layer >= self.layers:
                raise UsageError(f"{key} is {layer}; {self.name} has the layers 0 to {self.layers - 1}.")

    def require_room(self, prompt: int, new: int) -> None:
        if self.positions is not None and prompt + new > self.positions:
            raise UsageError(
                f"A prompt of {prompt} tokens and {new} new ones do not fit into the {self.positions} positions of "
                f"{self.name}."
            )


def require_whitebox(shape: Shape, file: Whitebox) -> None:
    """Raise UsageError where the model does not fit the file of a `whitebox` or `pressure` run."""
    shape.require_count(file.model.num_layers)
    shape.require_layers(file.layers_named())
    shape.require_room(file.experiment.inference.input_length, file.experiment.inference.continuation_tokens)


def foretold(model: str) -> Shape:
    """Return the shape by a folder's config.json. A hub name may not be downloaded yet: its shape is unknown."""
    file = path_called(source_of(model)) / "config.json"
    if not file.is_file():
        return Shape(name=model)
    whole = json.loads(file.read_text())
    found = whole.get("text_config", whole)
    return Shape(name=model, layers=_first(found, LAYERS), positions=_first(found, POSITIONS))


def shape_of(engine: RemoteEngine) -> Shape:
    found = engine.description
    return Shape(name=found.name, layers=found.layers, positions=found.context_length)


def _first(found: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((found[key] for key in keys if isinstance(found.get(key), int)), None)
