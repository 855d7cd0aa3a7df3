"""Tiny random models of many decoder families, built from their configurations alone.

Every parameter is drawn at random (biases and norm weights too), so that tensors which differ in meaning differ in
bits. `FAMILIES` names those that an engine should serve; `REFUSED` those it must refuse, each a builder as well. `MORE`
and `MORE_REFUSED` are the same for families that only the slow tests go through whole. A test of many families is
parametrised by `drawn(families)`: a run has those of `KINDS` and six that its commit draws; `make families` has all.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from tests.draw import commit
from tests.family_parts import (
    COMMON,
    GATED_DELTA,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LATENT,
    MAMBA,
    MOE,
    POSITIONS,
    VOCAB,
    Overrides,
    every,
    nemotron_h,
    sliding,
)
from tests.more_families import SERVED, UNSERVED
from tests.remaining_families import ALONE, ALONE_REFUSED, WITH_PARTS, WITH_PARTS_REFUSED
from tests.wrappers import UNSERVED_WRAPPERS, WRAPPERS, sections

_SPECIAL: dict[str, Overrides] = {
    "llama": lambda n: {},
    "gpt2": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "n_positions": POSITIONS},
    "mistral": lambda n: {"sliding_window": 8},
    "qwen3": lambda n: {},
    "gemma2": lambda n: {**sliding(n), "query_pre_attn_scalar": 8},
    "gemma3_text": lambda n: {**sliding(n), "query_pre_attn_scalar": 8},
    "phi3": lambda n: {"sliding_window": None},
    "mixtral": lambda n: {"num_local_experts": 4, "sliding_window": None},
    "gpt_neox": lambda n: {},
    "opt": lambda n: {"ffn_dim": 48, "word_embed_proj_dim": HIDDEN},
    "falcon": lambda n: {"new_decoder_architecture": False, "multi_query": True},
    "falcon:new": lambda n: {"new_decoder_architecture": True, "num_kv_heads": KV_HEADS},
    "falcon:alibi": lambda n: {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
    "bloom": lambda n: {"n_head": HEADS},
    "deepseek_v3": lambda n: {
        **LATENT,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 2,
        "head_dim": 8,
    },
    "mamba2": lambda n: {
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
        "expand": 2,
    },
    "jamba": lambda n: {
        "num_experts": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "qwen2": lambda n: {},
    "qwen2_moe": lambda n: {**MOE, "shared_expert_intermediate_size": 24},
    "qwen3_moe": lambda n: {**MOE},
    "stablelm": lambda n: {"use_qkv_bias": True},
    "cohere": lambda n: {"use_qk_norm": True},
    "cohere2": lambda n: {**sliding(n)},
    "olmo": lambda n: {},
    "olmo2": lambda n: {},
    "olmo3": lambda n: {**sliding(n)},
    "olmoe": lambda n: {"num_experts": 4, "num_experts_per_tok": 2},
    "phi": lambda n: {},
    "gptj": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "rotary_dim": 4, "n_positions": POSITIONS},
    "codegen": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "rotary_dim": 4, "n_positions": POSITIONS},
    "gpt_bigcode": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "n_positions": POSITIONS},
    "gpt_neo": lambda n: {"num_heads": HEADS, "attention_types": [[["global", "local"], n // 2]], "window_size": 8},
    "mpt": lambda n: {"d_model": HIDDEN, "n_heads": HEADS, "max_seq_len": POSITIONS},
    "granite": lambda n: {"residual_multiplier": 0.5, "attention_multiplier": 0.25, "embedding_multiplier": 2.0},
    "granitemoe": lambda n: {"num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.5},
    "starcoder2": lambda n: {"sliding_window": None},
    "persimmon": lambda n: {},
    "gemma": lambda n: {},
    "gemma3n_text": lambda n: {
        **sliding(n),
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * n,
        "intermediate_size": [48] * n,
    },
    "bamba": lambda n: {**MAMBA, "attn_layer_indices": [2, 5], "mamba_chunk_size": 8},
    "zamba2": lambda n: {
        **{key: value for key, value in MAMBA.items() if key not in ("mamba_n_heads", "mamba_d_head")},
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_ngroups": 2,
        "chunk_size": 8,
        "num_key_value_heads": HEADS,
        "attention_head_dim": 16,
        "layers_block_type": every(n, 3, "hybrid", "mamba"),
        "num_mem_blocks": 1,
        "adapter_rank": 4,
        "use_mamba_kernels": False,
    },
    "falcon_h1": lambda n: {**MAMBA, "mamba_d_ssm": 64, "mamba_chunk_size": 8},
    "recurrent_gemma": lambda n: {"lru_width": HIDDEN, "attention_window_size": 8},
    "lfm2": lambda n: {"layer_types": every(n, 3, "full_attention", "conv")},
    "qwen3_next": lambda n: {
        **MOE,
        **GATED_DELTA,
        "shared_expert_intermediate_size": 24,
        "layer_types": every(n, 4, "full_attention", "linear_attention"),
    },
    "gpt_oss": lambda n: {"num_local_experts": 4, "num_experts_per_tok": 2, **sliding(n)},
    "llama4_text": lambda n: {
        "num_local_experts": 4,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 16,
        "no_rope_layers": [1, 1, 1, 0] * (n // 4),
    },
    "mamba": lambda n: {"state_size": 8, "expand": 2, "use_mambapy": False, "time_step_rank": 4},
    "falcon_mamba": lambda n: {"state_size": 8, "expand": 2, "use_mambapy": False, "time_step_rank": 4},
    "granitemoehybrid": lambda n: {
        **MAMBA,
        "mamba_chunk_size": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
        "layer_types": every(n, 4, "attention", "mamba"),
    },
    "nemotron": lambda n: {},
    "nemotron_h": nemotron_h,
    "glm": lambda n: {"partial_rotary_factor": 0.5},
    "glm4": lambda n: {"partial_rotary_factor": 0.5},
    "helium": lambda n: {},
    "smollm3": lambda n: {"no_rope_layers": [1, 1, 1, 0] * (n // 4)},
    "exaone4": lambda n: {**sliding(n)},
    "ernie4_5": lambda n: {},
    "seed_oss": lambda n: {},
    "hunyuan_v1_dense": lambda n: {},
    "arcee": lambda n: {},
    "diffllama": lambda n: {},
    "xglm": lambda n: {"d_model": HIDDEN, "ffn_dim": 48, "attention_heads": HEADS},
    "biogpt": lambda n: {},
    "dbrx": lambda n: {
        "d_model": HIDDEN,
        "n_heads": HEADS,
        "max_seq_len": POSITIONS,
        "attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": HIDDEN},
    },
    "phimoe": lambda n: {"num_local_experts": 4, "sliding_window": None},
    "apertus": lambda n: {},
    "vaultgemma": lambda n: {**sliding(n), "query_pre_attn_scalar": 8},
    "deepseek_v2": lambda n: {
        **LATENT,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 2,
        "topk_method": "greedy",
    },
    "gpt_neox_japanese": lambda n: {"intermediate_multiple_size": 2},
    "jetmoe": lambda n: {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8, "num_key_value_heads": 2},
    "moshi": lambda n: {"audio_vocab_size": 32, "ffn_dim": 96, "sliding_window": 8},
    "zamba": lambda n: {
        "layers_block_type": every(n, 3, "hybrid", "mamba"),
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
        "num_key_value_heads": HEADS,
        "mamba_d_state": 8,
        "n_mamba_heads": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "bitnet": lambda n: {},
}

_SPECIAL_REFUSED: dict[str, Overrides] = {
    "minimax": lambda n: {
        "num_local_experts": 4,
        "layer_types": every(n, 2, "full_attention", "linear_attention"),
        "block_size": 8,
    },
    "rwkv": lambda n: {"attention_hidden_size": HIDDEN, "context_length": POSITIONS},
    "xlnet": lambda n: {"d_model": HIDDEN, "n_head": HEADS, "d_inner": 48, "n_layer": n},
    "openai-gpt": lambda n: {"n_embd": HIDDEN, "n_head": HEADS, "n_positions": POSITIONS},
}


_MORE = {**SERVED, **ALONE}
_MORE_REFUSED = {**UNSERVED, **ALONE_REFUSED}
_SERVED_TOWERS = {**WRAPPERS, **WITH_PARTS}
_REFUSED_TOWERS = {**UNSERVED_WRAPPERS, **WITH_PARTS_REFUSED}
_TOWERS: dict[str, Overrides] = {**_SERVED_TOWERS, **_REFUSED_TOWERS}


def configuration(name: str, layers: int = 8) -> Any:
    """The tiny configuration of a family. `falcon:new` is a variant of `falcon`."""
    kind = CONFIG_MAPPING[name.partition(":")[0]]
    if name in _TOWERS:
        return kind(**sections(kind, layers, _knows, _TOWERS[name](layers)))
    special = {**_SPECIAL, **_SPECIAL_REFUSED, **_MORE, **_MORE_REFUSED}[name](layers)
    fields = {**{key: value for key, value in COMMON.items() if _knows(kind, key)}, **special}
    if not isinstance(getattr(kind, "num_hidden_layers", None), property):
        fields = {"num_hidden_layers": layers, **fields}
    return kind(**fields)


@functools.cache
def _default(kind: Any) -> Any:
    return kind()


def _knows(kind: Any, field: str) -> bool:
    if isinstance(getattr(kind, field, None), property):
        return False
    return field in kind.attribute_map or field in vars(_default(kind)) or hasattr(kind, field)


# Families whose layers are of one kind, and that are served with the first, the last and two between as with more.
ALIKE = "llama gpt2 mistral qwen3 phi3 mixtral gpt_neox opt falcon falcon:new falcon:alibi bloom mamba mamba2".split()


def enough_layers(family: str) -> int:
    """Return how many layers show all kinds of layers that a family has, with a layer between two others."""
    return 4 if family in ALIKE else 8


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter: matrices at unit gain, vectors (norm weights, biases) around their initial value."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        with torch.no_grad():
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)


def build(
    name: str,
    seed: int = 0,
    layers: int = 8,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
) -> PreTrainedModel:
    """A tiny random model of a family, in eval mode. `attention` of None takes sdpa where the family has it."""
    config = configuration(name, layers)
    options = {} if attention is None else {"attn_implementation": attention}
    torch.manual_seed(seed)
    builders = (AutoModelForMultimodalLM, AutoModelForSeq2SeqLM) if name in _TOWERS else (AutoModelForCausalLM,)
    builder: Any = next(auto for auto in builders if type(config) in auto._model_mapping)
    model: Any = builder.from_config(config, dtype=dtype, **options)
    randomise(model, seed)
    model.tie_weights()
    return model.eval().requires_grad_(False)


LATER = "what a position holds depends on tokens after it"  # why a load refuses such a model


@functools.cache
@torch.no_grad()
def sees_later_tokens(name: str, attention: str | None = None) -> bool:
    """Return whether the installed transformers, asked without an engine, computes logits from later tokens too."""
    model: Any = build(name, attention=attention)
    one, other = (model(torch.tensor([(5, 17, 44, 91, 120, last)])).logits[0, :-1] for last in (7, 8))
    return not torch.allclose(one, other, atol=1e-4)


def _builders(names: Iterable[str]) -> dict[str, Callable[[], PreTrainedModel]]:
    """A builder of each family; an older transformers does not have all of them."""
    return {name: functools.partial(build, name) for name in names if name.partition(":")[0] in CONFIG_MAPPING}


# Projections apart and fused in each order, gates, experts, a compressed form, positions in four ways, windows, states.
KINDS = "llama gpt2 gpt_neox falcon bloom phi3 gpt_bigcode gemma3_text mixtral deepseek_v3 mamba2 jamba".split()
DRAWN = 6
FAMILIES = _builders(_SPECIAL)
REFUSED = _builders(_SPECIAL_REFUSED)
MORE = _builders(_MORE)
WITH_TOWERS = _builders(_SERVED_TOWERS)
TOWERS_REFUSED = _builders(_REFUSED_TOWERS)
MORE_REFUSED = _builders(_MORE_REFUSED)


def drawn(families: Iterable[str]) -> list[Any]:
    """Return the families as parameters of a test, those that this commit leaves out marked as slow."""
    here = {*KINDS, *_draw(commit())}
    return [name if name in here else pytest.param(name, marks=pytest.mark.slow) for name in families]


def _draw(commit: str) -> list[str]:
    return random.Random(commit).sample(sorted({*FAMILIES, *MORE} - {*KINDS}), DRAWN)
