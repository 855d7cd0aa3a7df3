"""Folders of transcoders as circuit-tracer writes them, and what they compute, in plain torch."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

FEATURES = 24
Tensors = dict[str, Tensor]
CONFIG = 'model_kind: {kind}\nfeature_input_hook: "{read}"  # read\nfeature_output_hook: {written}\n'
HOOKS = {"mlp_in": "mlp.hook_in", "resid_mid": "hook_resid_mid"}


def drawn(width: int, *, features: int = FEATURES, later: int = 0, skip: bool = False, seed: int = 0) -> Tensors:
    """Return random tensors of one layer, as circuit-tracer has them; with `later` of a cross-layer transcoder."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    decoders = (later,) if later else ()
    tensors = {
        "W_enc": random(features, width, scale=width**-0.5),
        "b_enc": random(features, scale=0.2) - 0.2,
        "W_dec": random(features, *decoders, width, scale=width**-0.5),
        "b_dec": random(width, scale=0.1),
    }
    return tensors | ({"W_skip": random(width, width, scale=0.3 * width**-0.5)} if skip else {})


def set_saved(folder: Path, layers: dict[int, Tensors], *, config: bool = True, point: str = "mlp_in") -> Path:
    """Write a transcoder of each layer, as circuit-tracer's `TranscoderSet` does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for layer, tensors in layers.items():
        save_file(tensors, folder / f"layer_{layer}.safetensors")
    if config:
        declared = CONFIG.format(kind="transcoder_set", read=HOOKS[point], written="mlp.hook_out")
        (folder / "config.yaml").write_text(declared)
    return folder


def across_saved(
    folder: Path,
    layers: dict[int, Tensors],
    *,
    config: bool = True,
    point: str = "mlp_in",
    written: str = "mlp.hook_out",
) -> Path:
    """Write a cross-layer transcoder, as circuit-tracer's does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for layer, tensors in layers.items():
        named = {f"{name}_{layer}": tensor for name, tensor in tensors.items()}
        save_file({f"W_dec_{layer}": named.pop(f"W_dec_{layer}")}, folder / f"W_dec_{layer}.safetensors")
        save_file(named, folder / f"W_enc_{layer}.safetensors")
    if config:
        declared = CONFIG.format(kind="cross_layer_transcoder", read=HOOKS[point], written=written)
        (folder / "config.yaml").write_text(declared)
    return folder


def drawn_across(width: int, layers: int, *, skip: bool = False) -> dict[int, Tensors]:
    """Return random tensors of every layer of a cross-layer transcoder."""
    return {layer: drawn(width, later=layers - layer, skip=skip, seed=layer) for layer in range(layers)}


def encode(x_TD: Tensor, tensors: Tensors) -> Tensor:
    """Return the features by the formula of the papers."""
    return active(x_TD @ tensors["W_enc"].T + tensors["b_enc"], tensors)


def active(before_TF: Tensor, tensors: Tensors) -> Tensor:
    """Return features by their values before the activation."""
    if "threshold" in tensors:
        return torch.where(before_TF > tensors["threshold"], before_TF.relu(), torch.zeros(()))
    return before_TF.relu()
