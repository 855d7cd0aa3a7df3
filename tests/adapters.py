"""Folders of small adapters as PEFT writes them, and what PEFT computes with them, in plain torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

RANK, ALPHA = 4, 6
Tensors = dict[str, Tensor]


def modules_of(model: nn.Module, ends: Iterable[str]) -> dict[str, Any]:
    """Return the linear modules whose paths end in one of these names."""
    return {path: one for path, one in model.named_modules() if path.rpartition(".")[2] in tuple(ends)}


def drawn(model: nn.Module, ends: Iterable[str], rank: int = RANK, seed: int = 0) -> Tensors:
    """Return random matrices for the modules of these names, both large enough to change a token."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for path, module in modules_of(model, ends).items():
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        outputs, inputs = weight.shape
        for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            drawn_one = torch.randn(shape, generator=generator) * shape[1] ** -0.5
            tensors[f"base_model.model.{path}.lora_{half}.weight"] = drawn_one
    return tensors


def saved(folder: Path, tensors: Tensors, **config: Any) -> Path:
    """Write a folder of PEFT and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "peft_type": "LORA",
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors}),
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.1,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "loftq_config": {},
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


class Beside(nn.Module):
    """A linear module with a product added, as `peft.tuners.lora.layer.Linear.forward` does."""

    def __init__(self, base: nn.Module, down: Tensor, up: Tensor, scaling: float) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, scaling
        self.register_buffer("down", down.float())
        self.register_buffer("up", up.float())

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        dtype = result.dtype
        x = x.to(self.down.dtype)
        result = result + functional.linear(functional.linear(x, self.down), self.up) * self.scaling
        return result.to(dtype)


def adapted(model: PreTrainedModel, tensors: Tensors, scaling: float = ALPHA / RANK) -> PreTrainedModel:
    """Put the products beside the modules of a model of one's own, and return it."""
    for name in tensors:
        if name.endswith(".lora_A.weight"):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            parent, _, last = path.rpartition(".")
            base = model.get_submodule(path)
            made = Beside(base, tensors[name], tensors[name.replace("lora_A", "lora_B")], scaling)
            setattr(model.get_submodule(parent), last, made)
    return model


@torch.no_grad()
def merged(model: PreTrainedModel, tensors: Tensors, scaling: float = ALPHA / RANK) -> PreTrainedModel:
    """Add the products to the weights of a model of one's own, and return it."""
    for name in tensors:
        if name.endswith(".lora_A.weight"):
            module: Any = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            product = scaling * tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
            module.weight += product.T if isinstance(module, Conv1D) else product
    return model
