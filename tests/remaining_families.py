"""Settings of the families that the auto classes of transformers list beside those of `more_families` and `wrappers`,
and the names of those that are not built tiny here, with the reason."""

from __future__ import annotations

from typing import Any

from tests.family_parts import (
    GATED_DELTA,
    INDEXED,
    LATENT,
    MINIMAX3,
    MOE,
    ROUTED,
    Overrides,
    every,
    nemotron_h,
    sliding,
    sparse,
)
from tests.more_families import SERVED, decoder, half

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}}


def _compass(layers: int) -> dict[str, Any]:
    return {**sliding(layers), "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}}


def plain(layers: int) -> dict[str, Any]:
    return {}


ALONE: dict[str, Overrides] = {
    "bert-generation": decoder,
    "bigbird_pegasus": half,
    "blenderbot": half,
    "blenderbot-small": half,
    "camembert": decoder,
    "cohere_compass_text": _compass,
    "data2vec-text": decoder,
    "ernie": decoder,
    "gpt-sw3": plain,
    "internlm3": plain,
    "iquestcoder": plain,
    "marian": half,
    "mvp": half,
    "plbart": half,
    "rembert": decoder,
    "roberta-prelayernorm": decoder,
    "roc_bert": decoder,
    "whisper": half,
    "xlm-roberta": decoder,
    "xlm-roberta-xl": decoder,
    "xmod": lambda n: {**decoder(n), "default_language": "en_XX"},
}
WITH_PARTS: dict[str, Overrides] = {
    "kosmos-2.5": plain,
    "glm4v_moe": lambda n: {
        "text_config": {**_MROPE, **ROUTED, "first_k_dense_replace": 2, "partial_rotary_factor": 1.0}
    },
    "glmga": lambda n: {"text_config": _MROPE},
    "kimi_k25": lambda n: {
        "text_config": {**LATENT, **ROUTED, "first_k_dense_replace": 2},
        "projection_hidden_size": 32,
    },
    "ernie4_5_vl_moe": lambda n: {
        "text_config": {
            **_MROPE,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": [24, 24],
            **sparse(n),
        }
    },
    "hunyuan_vl": lambda n: {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 1, 1]}}},
    "glm5_next": lambda n: {
        "text_config": {
            **LATENT,
            **ROUTED,
            **INDEXED,
            **sparse(n),
            "qk_rope_head_dim": 0,
            "head_dim": 0,
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "index_kpool": 4,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 2,
        }
    },
    "minicpm_ocr": plain,
    "minicpmv4_7": lambda n: {
        "text_config": {**GATED_DELTA, "layer_types": every(n, 4, "full_attention", "linear_attention")}
    },
    "minimax_m3_vl": lambda n: {"text_config": {**MINIMAX3}},
    "mistral4": lambda n: {
        **LATENT,
        **ROUTED,
        "first_k_dense_replace": 2,
        "rope_parameters": {**_ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 512},
    },
    "qwen3_omni_moe_thinker": lambda n: {"text_config": {**_MROPE, **MOE}, "vision_start_token_id": 126},
    "shieldgemma2": plain,
    "step3p7": lambda n: {
        "text_config": {
            **ROUTED,
            "num_local_experts": 4,
            "share_expert_dim": 24,
            **sparse(n),
            "layer_types": every(n, 3, "full_attention", "sliding_attention"),
            "sliding_window": 8,
            "num_sliding_attention_heads": 4,
        }
    },
    "molmo2": lambda n: {
        "vision_config": {"image_size": [28, 28]},
        "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 32},
        "text_config": {"additional_vocab_size": 8},
    },
    "pp_chart2table": plain,
    "nemotron_h_omni": lambda n: {
        "vision_config": {"video_temporal_patch_size": 2},
        "text_config": nemotron_h(n),
    },
    "muse_glimmer": plain,
    "cohere_compass": lambda n: {"text_config": _compass(n), "vision_config": {"deepstack_visual_indexes": [0, 1]}},
    "cosmos3_edge": lambda n: {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}},
    "fun_asr_nano": lambda n: {"adaptor_config": {"intermediate_size": 8}},
    "audioflamingo3": plain,
    "musicflamingo": plain,
    "qwen4_exp": lambda n: {"text_config": SERVED["qwen4_exp_text"](n)},
}
ALONE_REFUSED: dict[str, Overrides] = {
    "reformer": lambda n: {
        **decoder(n),
        "axial_pos_embds": False,
        "attn_layers": ["local"] * n,
        "attention_head_size": 8,
        "feed_forward_size": 48,
    },
}
WITH_PARTS_REFUSED: dict[str, Overrides] = {
    "instructblipvideo": plain,
    "unlimited_ocr": lambda n: {
        "text_config": {
            **ROUTED,
            **sparse(n),
            "n_shared_experts": 1,
            "sliding_window": 8,
            "topk_method": "greedy",
            "n_group": 1,
        },
        "vision_config": {
            "sam_config": {
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 64,
                "mlp_dim": 48,
                "global_attn_indexes": [1],
                "downsample_channels": [16, 32],
            },
            "encoder_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 28,
            },
        },
    },
}

_LARGE = "parts of it beside the text have fixed sizes; the text is served by the same means as that of other families"
_TIMM = (
    "its tower is a model of timm, which the tests do without; tried once with it, served bit for bit at every layer"
)
_ENCODER = "an encoder-decoder; refused at load by that reason"
NOT_BUILT: dict[str, str] = {
    "blt": "a model of bytes with a second model that cuts them into patches",
    "gemma3n": f"{_TIMM}; its text alone is gemma3n_text",
    "fast_vlm": _TIMM,
    "perception_lm": _TIMM,
    "gemma4_assistant": "drafts tokens for another model, with whose keys and values it runs",
    "gemma4_unified_assistant": "drafts tokens for another model, with whose keys and values it runs",
    "musicgen": _ENCODER,
    "musicgen_melody": _ENCODER,
    "kyutai_speech_to_text": "its tokens are of text and of several codebooks",
    "dots3_note": "its text alone is dots3_note_text",
    "inkling2": "refused at load, as its text alone, inkling2_text",
    "inkling_mm_model": "needs scipy, which the tests do without; served with it; its text alone is inkling_text",
    "qwen2_5_omni": "its thinker is read out of it, and served as qwen2_5_omni_thinker",
    "qwen3_omni_moe": "its thinker is read out of it, and served as qwen3_omni_moe_thinker",
    "vibevoice_asr": _LARGE,
    "nemo_speechlm": _LARGE,
    "deepseek_ocr2": _LARGE,
    "granite4_vision": _LARGE,
    "muse_spark": _LARGE,
    "pi0": "moves a robot",
    "evolla": "reads proteins",
    "diffusion_gemma": "makes blocks of tokens by diffusion, not one after the other; refused at load",
    "florence2": _ENCODER,
    "t5gemma2": _ENCODER,
    "udop": _ENCODER,
    "pp_formulanet": _ENCODER,
    "vision-encoder-decoder": _ENCODER,
}
