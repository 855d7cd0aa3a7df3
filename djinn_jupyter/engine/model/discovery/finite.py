"""Refuse a model whose hidden states are NaN or infinite: damaged weights, or a dtype with too small a range."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.discovery.recording import Recording
from djinn_jupyter.errors import ModelRefused


def check_finite(model: PreTrainedModel, layers: Mapping[str, nn.Module], recording: Recording) -> None:
    """Raise ModelRefused where a few ordinary tokens made NaN or infinity, naming the weight or the layer."""
    where = _first_overflow(layers, recording)
    if where is None:
        return
    damaged = next((name for name, weight in model.named_parameters() if not _finite(weight)), None)
    if damaged is not None:
        raise ModelRefused(
            f"The weights of this {type(model).__name__} are damaged: {damaged} holds NaN or infinity; "
            "copy or download them again."
        )
    dtype = str(model.dtype).removeprefix("torch.")
    raise ModelRefused(
        f"{type(model).__name__} overflows in {dtype}: its weights are finite, and {where} not. "
        "Load it in another dtype; bfloat16 and float32 reach further than float16."
    )


def _first_overflow(layers: Mapping[str, nn.Module], recording: Recording) -> str | None:
    for path, layer in layers.items():
        for call in recording.of(layer):
            made = call.first_output
            if made is not None and made.value is not None and not _finite(made.value):
                return f"what {path} returns is"
    assert recording.logits is not None
    return "its logits are" if recording.logits.isnan().any() else None  # minus infinity masks a token


def _finite(tensor: Tensor) -> bool:
    """True where all entries are finite. One-byte formats have no infinity to test for."""
    return not tensor.is_floating_point() or tensor.element_size() == 1 or bool(torch.isfinite(tensor).all())
