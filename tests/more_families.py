"""Settings of further tiny families: newer ones, mixtures and hybrids, and encoders' relatives made into decoders."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.engine.model.discovery.recording import LENGTHS
from tests.family_parts import (
    GATED_DELTA,
    HEADS,
    HIDDEN,
    INDEXED,
    LATENT,
    MINIMAX3,
    MOE,
    POSITIONS,
    ROUTED,
    VOCAB,
    Overrides,
    every,
    sliding,
    sparse,
)

_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_KIMI = {
    **LATENT,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 24,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}
_GEMMA4 = {"head_dim": 8, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8}
_COMPRESSED = {
    **ROUTED,
    **INDEXED,
    "q_lora_rank": 16,
    "o_lora_rank": 16,
    "o_groups": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 8,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}
_INKLING = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "sliding_window_size": 8,
    "rel_extent": 16,
    "d_rel": 4,
}


def _mixed(layers: int, rare: str = "full_attention", usual: str = "linear_attention") -> dict[str, Any]:
    return {"layer_types": every(layers, 4, rare, usual)}


def decoder(layers: int) -> dict[str, Any]:
    return {"is_decoder": True}


def half(layers: int) -> dict[str, Any]:
    """The decoder of an encoder-decoder, alone."""
    return {
        "d_model": HIDDEN,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "decoder_ffn_dim": 48,
        "is_decoder": True,
        "is_encoder_decoder": False,
    }


SERVED: dict[str, Overrides] = {
    "gemma3n_text:five": lambda n: {
        **sliding(n),
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "altup_num_inputs": LENGTHS[0],
        "activation_sparsity_pattern": [0.0] * n,
        "intermediate_size": [48] * n,
    },
    "qwen3_5_text": lambda n: {**GATED_DELTA, **_mixed(n)},
    "qwen3_5_moe_text": lambda n: {**MOE, **GATED_DELTA, **_mixed(n), "shared_expert_intermediate_size": 24},
    "gemma4_text": lambda n: {**_GEMMA4, **sliding(n)},
    "gemma4_text:shared": lambda n: {**_GEMMA4, **sliding(n), "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
    "gemma4_text:moe": lambda n: {
        **_GEMMA4,
        **sliding(n),
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "attention_k_eq_v": True,
    },
    "gemma4_unified_text": lambda n: {"head_dim": 8, **sliding(n)},
    "kimi_linear": lambda n: {**_KIMI, **sparse(n), **_mixed(n), "q_lora_rank": None},
    "bailing_hybrid": lambda n: {**_KIMI, **sparse(n), **_mixed(n), "num_expert_group": 2, "topk_group": 1},
    "glm4_moe": lambda n: {
        **ROUTED,
        "first_k_dense_replace": 2,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
    },
    "glm4_moe_lite": lambda n: {**LATENT, **ROUTED, **sparse(n)},
    "minimax_m2": lambda n: {**_EXPERTS, "rotary_dim": 4},
    "minimax_m3_vl_text": lambda n: {**MINIMAX3},
    "longcat_flash": lambda n: {
        **LATENT,
        "num_layers": n,
        "num_hidden_layers": 2 * n,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "mimo_v2_flash": lambda n: {**ROUTED, **sliding(n), **sparse(n), "v_head_dim": 4},
    "modernbert-decoder": lambda n: {
        "layer_types": every(n, 3, "full_attention", "sliding_attention"),
        "local_attention": 16,
    },
    "nanochat": lambda n: {},
    "ministral": lambda n: {**sliding(n)},
    "ministral3": lambda n: {},
    "olmo_hybrid": lambda n: {**GATED_DELTA, **_mixed(n), "linear_num_key_heads": 4},
    "flex_olmo": lambda n: {"num_experts": 4, "num_experts_per_tok": 2},
    "doge": lambda n: {},
    "dots1": lambda n: {**ROUTED, **sliding(n), "n_shared_experts": 1, "first_k_dense_replace": 2},
    "ernie4_5_moe": lambda n: {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 24,
        "moe_layer_start_index": 2,
        "moe_layer_end_index": n - 1,
    },
    "exaone_moe": lambda n: {**MOE, **sliding(n), **sparse(n), "first_k_dense_replace": 2},
    "granite_swa": lambda n: {**sliding(n)},
    "granitemoeshared": lambda n: {**_EXPERTS, "shared_intermediate_size": 24, "residual_multiplier": 0.5},
    "granitemoe_swa": lambda n: {**_EXPERTS, **sliding(n)},
    "hunyuan_v1_moe": lambda n: {"num_experts": 4, "moe_topk": 2},
    "hy_v3": lambda n: {**MOE, **sparse(n)},
    "hyperclovax": lambda n: {},
    "jais2": lambda n: {},
    "afmoe": lambda n: {**MOE, **sliding(n), "num_dense_layers": 2, "mup_enabled": True},
    "cwm": lambda n: {**sliding(n)},
    "lfm2_moe": lambda n: {**MOE, "num_dense_layers": 2, "layer_types": every(n, 3, "full_attention", "conv")},
    "lfm3": lambda n: {"sliding_window": 8},
    "minicpm3": lambda n: {**LATENT},
    "solar_open": lambda n: {**ROUTED},
    "youtu": lambda n: {**LATENT},
    "inkling_text": lambda n: {
        **_INKLING,
        **sparse(n),
        "layer_types": every(n, 3, "hybrid", "hybrid_sliding"),
        "n_shared_experts": 1,
    },
    "ctrl": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "dff": 48, "n_positions": POSITIONS},
    "aria_text": lambda n: {"moe_num_experts": 4, "moe_topk": 2},
    "cohere2_moe": lambda n: {**sliding(n), "num_experts": 4},
    "axk1": lambda n: {**LATENT, **ROUTED, **sparse(n)},
    "beam": lambda n: {**MOE, **sliding(n), **sparse(n), "n_group": 2, "topk_group": 1},
    "flint": lambda n: {**MOE, **sliding(n), "shared_expert_intermediate_size": 24},
    "kolibri1": lambda n: {**_EXPERTS, **MOE, **sliding(n), "shared_expert_intermediate_size": 24},
    "laguna": lambda n: {
        **MOE,
        **sliding(n),
        **sparse(n),
        "shared_expert_intermediate_size": 24,
        "num_attention_heads_per_layer": [HEADS] * n,
    },
    "mellum": lambda n: {**_EXPERTS, **MOE, **sliding(n)},
    "bert": decoder,
    "roberta": decoder,
    "electra": decoder,
    "megatron-bert": decoder,
    "roformer": decoder,
    "big_bird": decoder,
    "bart": half,
    "mbart": half,
    "pegasus": half,
    "trocr": half,
    "deepseek_v32": lambda n: {**LATENT, **ROUTED, **INDEXED, **sparse(n)},
    "glm_moe_dsa": lambda n: {**LATENT, **ROUTED, **INDEXED, **sparse(n)},
    "glm_moe_dsa:shared": lambda n: {
        **LATENT,
        **ROUTED,
        **INDEXED,
        **sparse(n),
        "index_topk": 24,  # of 31 positions: of fewer, an edited one may never be chosen
        "indexer_types": every(n, 3, "shared", "full"),
    },
    "hy_v4": lambda n: {**LATENT, **ROUTED, **INDEXED, "index_topk": 24, **sparse(n)},
    "axk2": lambda n: {**LATENT, **ROUTED, **INDEXED, **sparse(n)},
    "zaya": lambda n: {**MOE, "num_experts_per_tok": 1, "router_hidden_size": 8},
    "dots3_note_text": lambda n: {**LATENT, **ROUTED, **INDEXED, "sliding_window": 8},
    "qwen4_exp_text": lambda n: {
        **MOE,
        **GATED_DELTA,
        "shared_expert_intermediate_size": 24,
        "layer_types": every(n, 4, "full_attention", "linear_attention"),  # the full ones are indexed
        "hc_count": 2,
        "hc_lowrank": 8,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "deepseek_v4": lambda n: {**_COMPRESSED},
    "deepseek_v4:sliding": lambda n: {
        **_COMPRESSED,
        "layer_types": (["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"] * n)[:n],
        "sliding_window": 2,
    },
    "minimax_m3_vl_text:sparse": lambda n: {**MINIMAX3, **_mixed(n, "full_attention", "minimax_m3_sparse")},
}

UNSERVED: dict[str, Overrides] = {
    "prophetnet": lambda n: {
        "num_encoder_layers": n,
        "num_decoder_layers": n,
        "num_decoder_attention_heads": HEADS,
        "decoder_ffn_dim": 48,
        "is_decoder": True,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
    },
    "inkling2_text": lambda n: {
        **_INKLING,
        "layer_types": every(n, 3, "hybrid", "hybrid_sliding"),
        "unpadded_vocab_size": VOCAB,
    },
    "hrm_text": lambda n: {},
    "xlstm": lambda n: {
        "embedding_dim": HIDDEN,
        "num_blocks": n,
        "num_heads": 2,
        "chunk_size": 8,
        "ffn_round_up_to_multiple_of": 8,
    },
    "doge:moe": lambda n: {"is_moe": True, "num_experts": 4, "num_experts_per_tok": 2},
    "cpmant": lambda n: {"dim_head": 8, "dim_ff": 48},
    "bert:encoder": lambda n: {},
    "xlm": lambda n: {"emb_dim": HIDDEN, "n_heads": HEADS, "causal": True, "use_lang_emb": False},
}
