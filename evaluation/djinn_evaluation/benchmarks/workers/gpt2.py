"""The random GPT-2 that every side runs: drawn once, saved, and read from there with the same bits by all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from djinn_evaluation.baselines.weights import device_for


def load(folder: str, shape: dict[str, int], threads: int) -> GPT2LMHeadModel:
    """Return the model of a folder, on the device; draw it and save it in the folder if it is not there."""
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in the engine: both sides attend by the same kernels
    if not (Path(folder) / "config.json").is_file():
        _draw(shape).save_pretrained(folder)
    model: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    loaded: GPT2LMHeadModel = model.eval().requires_grad_(False).to(device_for(None))
    return loaded


def _draw(shape: dict[str, int]) -> GPT2LMHeadModel:
    """Draw matrices at unit gain, vectors around their initial value: tensors that differ in meaning differ in bits."""
    config = GPT2Config(
        n_layer=shape["layers"],
        n_embd=shape["width"],
        n_head=shape["heads"],
        vocab_size=shape["vocabulary"],
        n_positions=shape["positions"],
        bos_token_id=None,
        eos_token_id=None,
    )
    generator = torch.Generator().manual_seed(shape["seed"])
    model: Any = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    model.tie_weights()
    drawn: GPT2LMHeadModel = model.eval()
    return drawn
