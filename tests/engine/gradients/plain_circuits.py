"""A circuit by hand on a plain Llama: every reader reads the sum of what each writer writes, in this run where its edge
is in the circuit, and in the corrupted run where it is not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE
from tests.engine.gradients.plain_edges import rotated

Edge = tuple[str, str]


class SummedLlama:
    """The forward of a Llama written out over sums of writers; attention is a softmax over the model's own maps."""

    def __init__(self, model: Any, circuit: Collection[Edge], corrupted: dict[str, Tensor] | None) -> None:
        self.model, self.circuit, self.corrupted = model, circuit, corrupted
        self.width = model.config.head_dim
        self.heads, self.groups = model.config.num_attention_heads, model.config.num_key_value_heads
        self.writers: dict[str, Tensor] = {}

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        inner = self.model.model
        x = inner.embed_tokens(torch.tensor([tokens], device=DEVICE))
        self.writers["embed"] = x
        places = torch.arange(x.shape[1], device=x.device)[None]
        for number, layer in enumerate(inner.layers):
            self._attend(layer, number, inner.rotary_emb(x, places))
            read = layer.post_attention_layernorm(self._read(f"mlp_in.{number}"))
            self.writers[f"mlp_out.{number}"] = layer.mlp(read)
        return self.model.lm_head(inner.norm(self._read("logits")))[0, -1]

    def _read(self, reader: str) -> Tensor:
        parts = []
        for writer, value in self.writers.items():
            if self.corrupted is not None and (writer, reader) not in self.circuit:
                value = self.corrupted[writer]
            parts.append(value)
        return torch.stack(parts).sum(0)

    def _attend(self, layer: Any, number: int, rotary: tuple[Tensor, Tensor]) -> None:
        attention, made = layer.self_attn, {}
        for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            for head in range(heads):
                read = layer.input_layernorm(self._read(f"{name}.{number}[{head}]"))
                columns = slice(head * self.width, (head + 1) * self.width)
                made[name, head] = getattr(attention, f"{name}_proj")(read)[..., columns]
        length = made["q", 0].shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=made["q", 0].device).tril()
        added = {}
        for head in range(self.heads):
            group = head * self.groups // self.heads
            query, key = (rotated(made[name, at], *rotary) for name, at in (("q", head), ("k", group)))
            scores = (query @ key.transpose(-1, -2) * self.width**-0.5).masked_fill(~mask, -torch.inf)
            weight = attention.o_proj.weight[:, head * self.width : (head + 1) * self.width]
            added[f"z.{number}[{head}]"] = scores.softmax(-1) @ made["v", group] @ weight.T
        self.writers |= added


def metric(model: Any, clean: tuple[int, ...], corrupted: tuple[int, ...], circuit: Collection[Edge]) -> Tensor:
    """Return the logits [V] of the clean line's last position under a circuit."""
    other = SummedLlama(model, (), None)
    other.logits(corrupted)
    return SummedLlama(model, circuit, other.writers).logits(clean)
