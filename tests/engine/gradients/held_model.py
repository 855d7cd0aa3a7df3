"""A plain model with its queries, keys and the scales of its norms held, by hooks: direct effects by autograd.

A norm without a mean multiplies what it is given by numbers that depend on it: its output divided by its input. Held,
these are constants, whatever the norm's own formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests import transcoders

Layers = Mapping[int, transcoders.Tensors]


def held_norm(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    [given] = args
    return given * torch.where(given == 0, 0, output / given).detach()


def detached(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.detach()


class HeldModel:
    """One line through a model of layers with `self_attn.q_proj`, `k_proj` and `mlp`. `made` are what its MLPs make, as
    leaves; `before` the features before their activation [S, F], and `features` behind it, by layer."""

    def __init__(self, model: Any, layers: Layers, tokens: tuple[int, ...], *, read: str, written: str) -> None:
        self.layers = layers
        self.made: dict[int, Tensor] = {}
        self.before: dict[int, Tensor] = {}
        self._head = torch.empty(0)
        for name, module in model.named_modules():
            if type(module).__name__.endswith("RMSNorm") and "self_attn" not in name:
                module.register_forward_hook(held_norm)
            if name.endswith(("q_proj", "k_proj")):
                module.register_forward_hook(detached)
        for number, block in enumerate(model.model.layers):
            block.get_submodule(read).register_forward_pre_hook(self._reading(number))
            block.get_submodule(written).register_forward_hook(self._leaf(number))
        model.lm_head.register_forward_hook(self._noted)
        with torch.enable_grad():
            model(torch.tensor([tokens]), use_cache=False)
        self.logits = self._head[0, -1]  # before a cap
        self.features = {layer: transcoders.active(one, layers[layer]) for layer, one in self.before.items()}

    def _reading(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            tensors = self.layers[layer]
            self.before[layer] = args[0][0] @ tensors["W_enc"].T + tensors["b_enc"]

        return hook

    def _leaf(self, layer: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            self.made[layer] = output.detach().requires_grad_()
            return self.made[layer]

        return hook

    def _noted(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._head = output

    def effects(self, target: Tensor) -> dict[int, Tensor]:
        """Return the direct effect [S, F] of each feature on a target, by its layer."""
        gradients: Any = [None] * len(self.made)
        if target.requires_grad:  # nothing is before layer 0
            gradients = torch.autograd.grad(target, list(self.made.values()), allow_unused=True, retain_graph=True)
        by = dict(zip(self.made, gradients, strict=True))
        found = {}
        for layer, features in self.features.items():
            effect = torch.zeros_like(features)
            for later, gradient in by.items():
                decoder = self.layers[layer]["W_dec"]
                if gradient is None or later < layer or (decoder.ndim == 2 and later > layer):
                    continue
                own = decoder if decoder.ndim == 2 else decoder[:, later - layer]
                effect = effect + features.detach() * (gradient[0] @ own.T)
            found[layer] = effect.detach()
        return found
