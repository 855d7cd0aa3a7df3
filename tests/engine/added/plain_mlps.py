"""The MLPs of a plain model, by hooks: what they are given, or the residual before them, and the logits with other
values in place of what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.desk import tokens
from tests.families import build

PROMPT, LAYERS = tokens(12), 4
Change = Callable[[Tensor, Tensor], Tensor]
"""From what is read [T, D] and what the MLP makes [T, D] to what takes its place."""


@dataclass(frozen=True)
class Places:
    """The paths of a layer's MLP, and of the module that is given the residual before it."""

    mlp: str
    mid: str


FAMILIES = {
    "llama": Places("model.layers.{}.mlp", "model.layers.{}.post_attention_layernorm"),
    "gpt2": Places("transformer.h.{}.mlp", "transformer.h.{}.ln_2"),
}


@dataclass
class Hooked:
    """What was read of each layer, what its MLP made, and the logits [V] of the last position."""

    read: dict[int, Tensor]
    made: dict[int, Tensor]
    logits: Tensor


def hooked(family: str, changes: Mapping[int, Change] | None = None, point: str = "mlp_in") -> Hooked:
    """Run the plain model with the outputs of MLPs changed; `point` says what is read: mlp_in or resid_mid."""
    places = FAMILIES[family]
    return hooked_at(
        build(family, layers=LAYERS), places.mlp if point == "mlp_in" else places.mid, places.mlp, changes or {}
    )


def hooked_at(model: Any, given: str, written: str, changes: Mapping[int, Change]) -> Hooked:
    """Run a plain model; the modules whose input is read, and whose output is changed, are named by their paths."""
    found = Hooked({}, {}, torch.empty(0))

    def reading(layer: int) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            found.read[layer] = args[0][0].clone()

        return hook

    def writing(layer: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            found.made[layer] = output[0].clone()
            return changes[layer](found.read[layer], output[0])[None] if layer in changes else None

        return hook

    for layer in range(LAYERS):
        model.get_submodule(given.format(layer)).register_forward_pre_hook(reading(layer))
        model.get_submodule(written.format(layer)).register_forward_hook(writing(layer))
    with torch.inference_mode():
        found.logits = model(torch.tensor([PROMPT]), use_cache=False, logits_to_keep=1).logits[0, -1]
    return found
