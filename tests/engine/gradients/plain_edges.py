"""Edge attribution by hand on a plain Llama: every reader gets a residual of its own, whose gradient autograd tells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE

Edge = tuple[str, str]


class SplitLlama:
    """The forward of a Llama written out, in which each head's queries, keys and values and each MLP read a copy of the
    residual; the copies keep their gradients. Attention has no more than the model's own modules and a softmax."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.width = model.config.head_dim
        self.heads, self.groups = model.config.num_attention_heads, model.config.num_key_value_heads

    def run(self, tokens: tuple[int, ...] | None, entry: Tensor | None = None) -> None:
        inner = self.model.model
        x = inner.embed_tokens(torch.tensor([tokens], device=DEVICE)) if entry is None else entry
        self.writers: dict[str, Tensor] = {"embed": x.detach()}
        self.readers: dict[str, Tensor] = {}
        x = x.detach().requires_grad_()
        places = torch.arange(x.shape[1], device=x.device)[None]
        for number, layer in enumerate(inner.layers):
            x = x + self._attention(layer, number, x, inner.rotary_emb(x, places))
            read = layer.post_attention_layernorm(self._copy(f"mlp_in.{number}", x))
            made = layer.mlp(read)
            self.writers[f"mlp_out.{number}"] = made.detach()
            x = x + made
        self.logits_V = self.model.lm_head(inner.norm(self._copy("logits", x)))[0, -1]

    def _copy(self, name: str, x: Tensor) -> Tensor:
        copy = x.clone()
        copy.retain_grad()
        self.readers[name] = copy
        return copy

    def _attention(self, layer: Any, number: int, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        attention, made = layer.self_attn, {}
        for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            made[name] = [
                getattr(attention, f"{name}_proj")(layer.input_layernorm(self._copy(f"{name}.{number}[{head}]", x)))[
                    ..., head * self.width : (head + 1) * self.width
                ]
                for head in range(heads)
            ]
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        total = torch.zeros_like(x)
        for head in range(self.heads):
            group = head * self.groups // self.heads
            query, key = (rotated(made[name][at], *rotary) for name, at in (("q", head), ("k", group)))
            scores = (query @ key.transpose(-1, -2) * self.width**-0.5).masked_fill(~mask, -torch.inf)
            z = scores.softmax(-1) @ made["v"][group]
            weight = attention.o_proj.weight[:, head * self.width : (head + 1) * self.width]
            added = z @ weight.T
            self.writers[f"z.{number}[{head}]"] = added.detach()
            total = total + added
        bias = attention.o_proj.bias
        return total if bias is None else total + bias


def rotated(value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = value.chunk(2, -1)
    return value * cos + torch.cat([-second, first], -1) * sin


def scores(model: Any, clean: tuple[int, ...], corrupted: tuple[int, ...], a: int, b: int, steps: int) -> Any:
    """Return the score of each edge by (writer, reader) of logit(a) - logit(b)."""
    source, line, found = SplitLlama(model), SplitLlama(model), dict[Edge, float]()
    source.run(clean)
    line.run(corrupted)
    own = line.writers
    for step in range(steps):
        if steps > 1:
            part = (step + 0.5) / steps
            line.run(None, own["embed"] + part * (source.writers["embed"] - own["embed"]))
        (line.logits_V[a] - line.logits_V[b]).backward()
        for reader, copy in line.readers.items():
            for writer, value in own.items():
                if copy.grad is not None and _is_before(writer, reader):
                    change = float(((source.writers[writer] - value) * copy.grad).sum()) / steps
                    found[writer, reader] = found.get((writer, reader), 0.0) + change
    return found, line.logits_V


def _is_before(writer: str, reader: str) -> bool:
    if writer == "embed" or reader == "logits":
        return True
    wrote, read = (int(name.split(".")[1].split("[")[0]) for name in (writer, reader))
    return wrote < read or (wrote == read and writer.startswith("z") and reader.startswith("mlp_in"))
