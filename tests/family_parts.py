"""The sizes and the settings that tiny families have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VOCAB = 128
HIDDEN = 32
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 8
POSITIONS = 512

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MAMBA = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
}
MINIMAX3 = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rotary_dim": 4,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 24,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 4,
    "index_topk_blocks": 2,
}
GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}


def every(layers: int, period: int, rare: str, usual: str) -> list[str]:
    return [rare if i % period == period - 1 else usual for i in range(layers)]


def sliding(layers: int) -> dict[str, Any]:
    return {"sliding_window": 8, "layer_types": every(layers, 3, "full_attention", "sliding_attention")}


ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
}
INDEXED = {"index_topk": 8, "index_head_dim": 8, "index_n_heads": 2}


def sparse(layers: int, dense: int = 2) -> dict[str, Any]:
    return {"mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense)}


Overrides = Callable[[int], dict[str, Any]]


def nemotron_h(n: int) -> dict[str, Any]:
    return {
        "layers_block_type": (["mamba", "mlp", "attention", "mlp"] * n)[:n],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
        "use_mamba_kernels": False,
    }
