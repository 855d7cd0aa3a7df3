"""Tiny models with a tower for images or sound, of which an engine serves the language part.

Each is built by the class that saves such checkpoints. Its sections are made small by the fields that their classes
know; a family's further needs are in `WRAPPERS` and `UNSERVED_WRAPPERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.family_parts import COMMON, GATED_DELTA, LATENT, MOE, Overrides, every, sliding

Knows = Callable[[Any, str], bool]
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_heads": 4,
    "head_dim": 8,
    "image_size": 28,
    "patch_size": 14,
    "depth": 2,
    "embed_dim": 32,
    "out_hidden_size": 32,
    "projection_dim": 32,
    "vision_output_dim": 32,
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
}
_CODEBOOK = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "codebook_size": 64}
_IMAGE_TOKENS = {"<image>": 5, **{f"IMGIMG{letter}Z": 20 + at for at, letter in enumerate("ABCDE")}}


def _plain(layers: int) -> dict[str, Any]:
    return {}


def _text(**fields: Any) -> Overrides:
    """Return the fields that the section of the text needs."""
    return lambda layers: {"text_config": fields}


def _layers(of: Callable[[int], dict[str, Any]], **fields: Any) -> Overrides:
    return lambda layers: {"text_config": {**of(layers), **fields}}


def _rare(layers: int) -> dict[str, Any]:
    return {"layer_types": every(layers, 4, "full_attention", "linear_attention")}


_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
_MROPE = _text(**_SECTIONS)

WRAPPERS: dict[str, Overrides] = {
    "llava": _plain,
    "llava_next": _plain,
    "llava_next_video": _plain,
    "llava_onevision": _plain,
    "vipllava": _plain,
    "video_llava": _plain,
    "mistral3": _plain,
    "qwen2_vl": _MROPE,
    "qwen2_5_vl": _MROPE,
    "qwen3_vl": _plain,
    "qwen3_vl_moe": _text(**MOE),
    "qwen2_5_omni_thinker": lambda n: {"text_config": _SECTIONS, "vision_start_token_id": 126},
    "qwen2_audio": _plain,
    "qwen3_asr": _plain,
    "smolvlm": _plain,
    "idefics2": _plain,
    "idefics3": _plain,
    "granite_docling": _plain,
    "internvl": _plain,
    "aria": _text(moe_num_experts=4, moe_topk=2),
    "aya_vision": _plain,
    "cohere2_vision": _plain,
    "cosmos3_omni": _plain,
    "deepseek_vl": _plain,
    "deepseek_vl_hybrid": _plain,
    "exaone4_5": _plain,
    "gemma3": _layers(sliding),
    "gemma4": _layers(sliding, vocab_size_per_layer_input=128, hidden_size_per_layer_input=8),
    "gemma4_unified": _layers(sliding),
    "llama4": _text(num_local_experts=4, intermediate_size_mlp=48, attention_chunk_size=16),
    "qwen3_5": _layers(_rare, **GATED_DELTA),
    "qwen3_5_moe": _layers(_rare, **GATED_DELTA, **MOE, shared_expert_intermediate_size=24),
    "glm4v": _MROPE,
    "glm46v": _MROPE,
    "glm_ocr": _MROPE,
    "paddleocr_vl": _MROPE,
    "got_ocr2": _plain,
    "hyperclovax_vision_v2": _plain,
    "lfm2_vl": _plain,
    "lfm3_vl": _plain,
    "lighton_ocr": _plain,
    "qianfan_ocr": _plain,
    "video_llama_3": _plain,
    "ovis2": _plain,
    "minicpmv4_6": _layers(_rare, **GATED_DELTA),
    "janus": lambda n: {"vq_config": _CODEBOOK},
    "chameleon": lambda n: {"vocabulary_map": _IMAGE_TOKENS, "vq_config": _CODEBOOK},
    "emu3": lambda n: {
        "vocabulary_map": {**_IMAGE_TOKENS, **{f"<|visual token {at:06d}|>": 30 + at for at in range(8)}},
        "vq_config": _CODEBOOK,
    },
    "fuyu": _plain,
    "git": _plain,
    "phi4_multimodal": _plain,
    "glmasr": _plain,
    "granite_speech": _plain,
    "granite_speech_plus": _plain,
    "moss_transcribe_diarize": _plain,
    "mllama": _plain,
    "mistral_large4": _text(**LATENT, **MOE),
    "voxtral": _plain,
}
UNSERVED_WRAPPERS: dict[str, Overrides] = {
    "blip": _plain,
    "blip-2": _plain,
    "instructblip": _plain,
    "idefics": _plain,
    "kosmos-2": _plain,
    "paligemma": _plain,
    "pix2struct": _plain,
    "voxtral_realtime": _plain,
}


def sections(kind: Any, layers: int, knows: Knows, special: dict[str, Any]) -> dict[str, Any]:
    """The fields of a wrapper's configuration: each section small, the text's as in other tiny families."""
    default = kind()
    found = {name: getattr(default, name, None) for name in kind.sub_configs}
    fields: dict[str, Any] = dict(special)
    for name, section in found.items():
        if section is not None:
            small = _small(type(section), layers, knows, text=name == "text_config")
            fields[name] = {"model_type": section.model_type, **small, **special.get(name, {})}
    return fields if "text_config" in found else {**_small(kind, layers, knows, text=True), **fields}


def _small(kind: Any, layers: int, knows: Knows, text: bool) -> dict[str, Any]:
    wanted = {**COMMON, "num_hidden_layers": layers} if text else _TOWER
    return {name: value for name, value in wanted.items() if knows(kind, name)}
