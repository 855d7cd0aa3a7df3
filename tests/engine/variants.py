"""Tiny models with a peculiarity: in-place layers, dynamic rotary frequencies, and models to be refused."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.families import configuration, randomise


def in_place(model: Any) -> Any:
    """A Llama whose layers add to the tensor they are given, as some families do."""

    def forward(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        hidden_states += attended
        hidden_states += self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states

    for layer in model.model.layers:
        layer.forward = types.MethodType(forward, layer)
    return model


def dynamic_rope() -> Any:
    """A Llama trained, as it were, on 16 positions, whose frequencies stretch with the length."""
    config = configuration("llama")
    config.max_position_embeddings = 16
    config.rope_parameters = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 10000.0}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, 0)
    return model.eval().requires_grad_(False)


def called_twice(model: Any) -> Any:
    """A Llama that runs its third layer twice in a pass."""
    model.model.layers[3] = model.model.layers[2]
    return model


def remembering(model: Any) -> Any:
    """A Llama whose fifth layer keeps a running sum in the module."""
    mlp = model.model.layers[4].mlp
    plain = type(mlp).forward
    mlp.register_buffer("memory", torch.zeros(model.config.hidden_size))

    def forward(self: Any, x: Tensor) -> Tensor:
        self.memory = self.memory + x.mean(dim=(0, 1))
        return plain(self, x) + self.memory

    mlp.forward = types.MethodType(forward, mlp)
    return model


class Rolling(nn.Module):
    """Adds noise: no two passes agree."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-3 * torch.randn_like(x)


def nondeterministic(model: Any) -> Any:
    model.model.layers[4].mlp.act_fn = nn.Sequential(model.model.layers[4].mlp.act_fn, Rolling())
    return model


def two_ropes(layers: int = 8, dtype: torch.dtype = torch.float32, attention: str | None = None) -> Any:
    """A Phi-3 with short frequencies up to 20 positions, and long ones beyond."""
    config = configuration("phi3", layers)
    config.original_max_position_embeddings = 20
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 20,
    }
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
    randomise(model, 0)
    return model.eval().requires_grad_(False)
