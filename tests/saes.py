"""Folders of small SAEs as SAELens writes them, and what the papers say that they compute, in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

FEATURES = 48
Tensors = dict[str, Tensor]


def drawn(width: int, architecture: str = "standard", features: int = FEATURES, seed: int = 0) -> Tensors:
    """Return random tensors of an SAE, a third of whose features are active."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    tensors = {
        "W_enc": random(width, features, scale=width**-0.5),
        "W_dec": random(features, width, scale=width**-0.5),
        "b_dec": random(width, scale=0.1),
    }
    if architecture == "gated":
        return tensors | {name: random(features, scale=0.2) for name in ("b_gate", "b_mag", "r_mag")}
    tensors["b_enc"] = random(features, scale=0.2) - 0.2
    return tensors | ({"threshold": random(features).abs()} if "jumprelu" in architecture else {})


def saved(folder: Path, tensors: Tensors, architecture: str = "standard", **cfg: Any) -> Path:
    """Write a folder of SAELens and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    width, features = tensors["W_enc"].shape
    said = {"architecture": architecture, "d_in": width, "d_sae": features, "dtype": "float32", **cfg}
    (folder / "cfg.json").write_text(json.dumps(said))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "sae_weights.safetensors")
    return folder


def encode(x: Tensor, tensors: Tensors, architecture: str = "standard", **cfg: Any) -> Tensor:
    """Return the features of x [T, D], by the formulas of the papers."""
    given, _, _ = _normed(x, cfg.get("normalize_activations", "none"))
    if cfg.get("apply_b_dec_to_input", True):
        given = given - tensors["b_dec"]
    if architecture == "gated":
        gate = (given @ tensors["W_enc"] + tensors["b_gate"] > 0).float()
        magnitude = given @ (tensors["W_enc"] * tensors["r_mag"].exp()) + tensors["b_mag"]
        return gate * torch.relu(magnitude)
    before = given @ tensors["W_enc"] + tensors["b_enc"]
    if architecture == "jumprelu":
        return torch.where(before > tensors["threshold"], torch.relu(before), torch.zeros(()))
    if architecture == "topk":
        if cfg.get("rescale_acts_by_decoder_norm"):
            before = before * tensors["W_dec"].norm(dim=1)
        kept = before.argsort(dim=-1, descending=True)[:, : cfg["k"]]
        return torch.zeros_like(before).scatter(-1, kept, torch.relu(before.gather(-1, kept)))
    return torch.relu(before)


def decode(x: Tensor, features: Tensor, tensors: Tensors, **cfg: Any) -> Tensor:
    """Return the reconstruction of x that the features make."""
    _, scale, shift = _normed(x, cfg.get("normalize_activations", "none"))
    if cfg.get("rescale_acts_by_decoder_norm"):
        features = features / tensors["W_dec"].norm(dim=1)
    return (features @ tensors["W_dec"] + tensors["b_dec"]) * scale + shift


def _normed(x: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    one, zero = torch.ones(len(x), 1), torch.zeros(len(x), 1)
    if kind == "layer_norm":
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True)
        return (x - mean) / (deviation + 1e-5), deviation, mean
    if kind == "constant_norm_rescale":
        scale = x.norm(dim=1, keepdim=True) / x.shape[1] ** 0.5
        return x / scale, scale, zero
    return x, one, zero
