"""A tiny Llama and a tiny gpt-oss on disk, plain and in formats that need no library to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.families import randomise

LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, WIDE, VOCAB = 4, 4, 2, 32, 128, 256, 128
BLOCK = 32


def plain_folder(where: Path, hidden: int = HIDDEN, wide: int = WIDE, layers: int = LAYERS) -> Path:
    """Write the Llama whose weights are rounded."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers,
            num_attention_heads=hidden // HEAD,
            num_key_value_heads=hidden // HEAD // 2,
            max_position_embeddings=128,
        )
    )
    randomise(model, 0)
    model.save_pretrained(where)
    return where


def write_fp8(plain: Path, to: Path) -> Path:
    """Write blocks of float8 with a scale each, as DeepSeek's and Qwen's checkpoints have them."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    model.save_pretrained(to)
    held = {}
    for name, tensor in load_file(to / "model.safetensors").items():
        held[name] = tensor
        if "proj" in name:
            blocks = tensor.float().reshape(tensor.shape[0] // BLOCK, BLOCK, -1, BLOCK)
            scale = blocks.abs().amax((1, 3)) / 448
            held[name] = (blocks / scale[:, None, :, None]).reshape(tensor.shape).to(torch.float8_e4m3fn)
            held[f"{name}_scale_inv"] = scale
    save_file(held, to / "model.safetensors", metadata={"format": "pt"})
    said = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    say(to, quantization_config=said)
    return to


def write_mxfp4(to: Path) -> Path:
    """Write a tiny gpt-oss whose experts are blocks of 4 bits with a scale each, as its checkpoints have them."""
    model = GptOssForCausalLM(
        GptOssConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ).to(torch.bfloat16)
    randomise(model, 0)
    model.save_pretrained(to)
    held, generator = load_file(to / "model.safetensors"), torch.Generator().manual_seed(0)
    for name in [name for name in held if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = held.pop(name).shape
        shape = (experts, outputs, inputs // BLOCK)
        held[f"{name}_blocks"] = torch.randint(256, (*shape, BLOCK // 2), dtype=torch.uint8, generator=generator)
        held[f"{name}_scales"] = torch.randint(122, 126, shape, dtype=torch.uint8, generator=generator)
    save_file(held, to / "model.safetensors", metadata={"format": "pt"})
    say(to, quantization_config={"quant_method": "mxfp4"})
    return to


def say(where: Path, **fields: Any) -> None:
    said = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**said, **fields}))
