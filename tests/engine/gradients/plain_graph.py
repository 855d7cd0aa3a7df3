"""The local replacement model of a plain Llama, by hand: its attention maps and the factors of its norms are constants,
its MLPs the sums of what transcoders write, with what they leave out; targets are pulled back by autograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests import transcoders

Layers = Mapping[int, transcoders.Tensors]


@dataclass
class Leaves:
    """What the model's values are made of: embeddings [S, D], features [S, F] and errors [S, D] by layer."""

    embeddings: Tensor
    features: dict[int, Tensor] = field(default_factory=dict)
    errors: dict[int, Tensor] = field(default_factory=dict)

    def all(self) -> list[Tensor]:
        return [self.embeddings, *self.features.values(), *self.errors.values()]


class ReplacedLlama:
    """`leaves` are those of the line; `values` makes features before their activation, and logits, of any leaves.
    Transcoders read what an MLP is given, or with `of_residual` the residual before its norm."""

    def __init__(self, model: Any, layers: Layers, tokens: tuple[int, ...], *, of_residual: bool = False) -> None:
        self.model, self.layers, self.of_residual = model, layers, of_residual
        model.set_attn_implementation("eager")
        seen: dict[str, Any] = {}
        handles = [module.register_forward_hook(self._keep(seen, name)) for name, module in model.named_modules()]
        with torch.no_grad():
            run = model(torch.tensor([tokens]), output_attentions=True, use_cache=False)
        for handle in handles:
            handle.remove()
        self.maps, self.logits = run.attentions, run.logits[0, -1]
        self.factors = {name: self._factor(given) for name, (given, _) in seen.items() if name.endswith("norm")}
        self.leaves = Leaves(seen["model.embed_tokens"][1][0].clone())
        for number in range(len(model.model.layers)):
            given, made = (one[0] for one in seen[f"model.layers.{number}.mlp"])
            read = seen[f"model.layers.{number}.post_attention_layernorm"][0][0] if of_residual else given
            if number in layers:
                self.leaves.features[number] = transcoders.encode(read, layers[number])
            rest = made - self._written(self.leaves, number, read, errors=False)
            self.leaves.errors[number] = rest

    def _keep(self, seen: dict[str, Any], name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            if args and isinstance(output, Tensor):
                seen[name] = args[0].detach(), output.detach()

        return hook

    def _factor(self, given: Tensor) -> Tensor:
        epsilon = self.model.config.rms_norm_eps
        return torch.rsqrt(given[0].pow(2).mean(-1, keepdim=True) + epsilon)

    def _normed(self, x_SD: Tensor, name: str) -> Tensor:
        return x_SD * self.factors[name] * self.model.get_submodule(name).weight

    def _written(self, leaves: Leaves, layer: int, given: Tensor, *, errors: bool = True) -> Tensor:
        found = torch.zeros_like(given)
        for below, tensors in self.layers.items():
            decoder = tensors["W_dec"]
            if below <= layer and (decoder.ndim == 3 or below == layer):
                own = decoder[:, layer - below] if decoder.ndim == 3 else decoder
                found = found + leaves.features[below] @ own
        if layer in self.layers:
            found = found + self.layers[layer]["b_dec"]
            if "W_skip" in self.layers[layer]:
                skip = self.layers[layer]["W_skip"]
                found = found + given @ (skip if self.layers[layer]["W_dec"].ndim == 3 else skip.T)
        return found + leaves.errors[layer] if errors else found

    def values(self, leaves: Leaves) -> tuple[dict[int, Tensor], Tensor]:
        """Return the features before their activation [S, F] by layer, and the logits [V]."""
        x_SD, before = leaves.embeddings, {}
        for number, block in enumerate(self.model.model.layers):
            attention, name = block.self_attn, f"model.layers.{number}"
            value = self._normed(x_SD, f"{name}.input_layernorm") @ attention.v_proj.weight.T
            heads, width = self.maps[number].shape[1], attention.head_dim
            grouped = value.reshape(len(value), -1, width).repeat_interleave(attention.num_key_value_groups, 1)
            mixed = torch.einsum("hts,shd->thd", self.maps[number][0], grouped).reshape(len(value), heads * width)
            x_SD = x_SD + mixed @ attention.o_proj.weight.T
            given = x_SD if self.of_residual else self._normed(x_SD, f"{name}.post_attention_layernorm")
            if number in self.layers:
                tensors = self.layers[number]
                before[number] = given @ tensors["W_enc"].T + tensors["b_enc"]
            x_SD = x_SD + self._written(leaves, number, given)
        return before, (self._normed(x_SD, "model.norm") @ self.model.lm_head.weight.T)[-1]

    def effects(self, target: Any) -> Leaves:
        """Return the direct effect of each leaf's every entry (of errors and embeddings, of each position) on a target,
        a function of `values`."""
        leaves = Leaves(
            self.leaves.embeddings.clone().requires_grad_(),
            {layer: one.clone().requires_grad_() for layer, one in self.leaves.features.items()},
            {layer: one.clone().requires_grad_() for layer, one in self.leaves.errors.items()},
        )
        gradients = torch.autograd.grad(target(*self.values(leaves)), leaves.all(), allow_unused=True)
        made = [
            (torch.zeros_like(leaf) if by is None else leaf.detach() * by)
            for leaf, by in zip(leaves.all(), gradients, strict=True)
        ]
        embeddings, *others = made
        features = dict(zip(leaves.features, others, strict=False))
        errors = dict(zip(leaves.errors, others[len(features) :], strict=True))
        return Leaves(embeddings.sum(-1), features, {layer: one.sum(-1) for layer, one in errors.items()})
