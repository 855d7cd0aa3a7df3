"""Folders of small SAEs and transcoders as Gemma Scope 2 has them (config.json, params.safetensors)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]
PLAIN: Final = {"W_enc": "w_enc", "W_dec": "w_dec"}
BEFORE_MLP: Final = "model.layers.1.pre_feedforward_layernorm.output"
BEHIND_MLP: Final = "model.layers.1.post_feedforward_layernorm.output"


def saved(folder: Path, tensors: Tensors, *, read: str, skip_IO: Tensor | None = None, **config: Any) -> Path:
    """Write a folder with tensors named as SAELens names them; `skip_IO` is the affine connection [inputs, outputs]."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {"architecture": "jump_relu", "model_name": "gemma-v3-1b-pt", "hf_hook_point_in": read, **config}
    (folder / "config.json").write_text(json.dumps(said))
    named = {PLAIN.get(name, name): tensor for name, tensor in tensors.items()}
    named |= {} if skip_IO is None else {"affine_skip_connection": skip_IO}
    save_file({name: tensor.contiguous() for name, tensor in named.items()}, folder / "params.safetensors")
    return folder


def skip(width: int, seed: int = 9) -> Tensor:
    return torch.randn(width, width, generator=torch.Generator().manual_seed(seed)) * 0.1
