"""The fields of `generation_config.json`. Names and defaults as in transformers 5.23 (`GenerationConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from transformers import GenerationConfig, PreTrainedModel

from djinn_jupyter.module_files.field_table import FieldTable

GENERATION: Final = FieldTable(
    computed=frozenset({
        "bad_words_ids", "begin_suppress_tokens", "do_sample", "epsilon_cutoff", "eta_cutoff",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "min_length",
        "min_new_tokens", "min_p", "no_repeat_ngram_size", "remove_invalid_values", "renormalize_logits",
        "repetition_penalty", "sequence_bias", "suppress_tokens", "temperature", "top_h", "top_k", "top_p",
        "typical_p", "watermarking_config",
    }),
    harmless=frozenset({
        "_from_model_config", "assistant_confidence_threshold", "assistant_ensemble_weight", "assistant_lookbehind",
        "bos_token_id", "cache_config", "compile_config", "continuous_batching_config", "decoder_start_token_id",
        "disable_compile", "diversity_penalty", "early_stopping", "eos_token_id", "length_penalty", "low_memory",
        "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id",
        "prefill_chunk_size", "return_dict_in_generate", "speculation_type", "target_lookbehind",
        "transformers_version", "use_cache",
    }),
    refused={
        "assistant_early_exit": (None, ""),
        "cache_implementation": ("hybrid", ""),  # which generate drops
        "constraints": (None, ""),
        "dola_layers": (None, ""),
        "encoder_no_repeat_ngram_size": (0, ""),
        "encoder_repetition_penalty": (1.0, ""),
        "force_words_ids": (None, ""),
        "guidance_scale": (1, ""),
        "is_assistant": (False, ""),
        "max_length": (20, ""),
        "max_new_tokens": (None, ""),
        "max_time": (None, ""),
        "num_beam_groups": (1, ""),
        "num_beams": (1, ""),
        "num_return_sequences": (1, ""),
        "penalty_alpha": (None, ""),
        "prompt_lookup_num_tokens": (None, ""),
        "stop_strings": (None, ""),
        "token_healing": (False, ""),
        "use_mtp": (False, ""),
    },
)  # fmt: skip
"""A run with `model_defaults` applies `computed` fields, and no other run does. No run applies `refused` ones: their
names are told. The harmless ones choose how fast `generate` is and what it returns, or need a refused one to count.
`eos_token_id` is heard in every run."""


def model_settings(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of the model's generation config that change what `generate` returns from what it returns
    without a config: those computed here, and those that are not."""
    config = model.generation_config
    given: Mapping[str, Any] = config.to_diff_dict() if config else {}
    defaults = GenerationConfig()._get_default_generation_params()
    computed = {
        name: value
        for name, value in given.items()
        if name in GENERATION.computed and not GENERATION.is_unset(name, value) and value != defaults.get(name)
    }
    return computed | GENERATION.unheard(given)
