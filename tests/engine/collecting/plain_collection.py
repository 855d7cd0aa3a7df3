"""A collection by hand: hooks on the plain model's layers, one forward a prompt; a shard as safetensors reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tests.device import DEVICE
from tests.engine.sweeps.plain_sweep import layers_of


def residuals(model: Any, prompt: tuple[int, ...]) -> list[Tensor]:
    """Return the output [T, D] of each layer."""
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0].clone().cpu())

    hooks = [layer.register_forward_hook(keep) for layer in layers_of(model)]
    with torch.inference_mode():
        model(torch.tensor([prompt], device=DEVICE), use_cache=True)
    for hook in hooks:
        hook.remove()
    return kept


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a shard's tensors and its note."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["djinn"])  # noqa: SIM118
