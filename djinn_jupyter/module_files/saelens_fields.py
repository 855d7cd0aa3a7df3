"""The fields of SAELens's cfg.json. Names are those of SAELens 6 (`saes/`, `config.py`) and of all versions before it,
whose files have the whole configuration of a training."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.module_files.field_table import FieldTable

ONE_HEAD: Final = "it writes to one head alone, and a transcoder here writes to an MLP"
OF_METADATA: Final = frozenset({
    "context_size", "dataset_path", "dataset_trust_remote_code", "disable_concat_sequences",
    "exclude_special_tokens", "hf_hook_name_out", "hook_layer", "hook_layer_out",
    "hook_point_layer", "l0", "model_class_name", "neuronpedia_id", "num_dead_features", "prepend_bos",
    "sae_lens_training_version", "sae_lens_version", "seqpos_slice", "sequence_separator_token",
    "training_architecture", "training_architecture_details"
})  # fmt: skip
OF_TRAINING: Final = frozenset({
    "act_store_device", "activations_mixing_fraction", "adam_beta1", "adam_beta2", "autocast", "autocast_lm",
    "aux_loss_coefficient", "b_dec_init_method", "begin_batch_token", "begin_sequence_token",
    "cached_activations_path", "checkpoint_path", "compile_llm", "compile_sae",
    "dead_feature_estimation_method", "dead_feature_threshold", "dead_feature_window", "decoder_heuristic_init",
    "decoder_heuristic_init_norm", "decoder_init_norm", "decoder_orthogonal_init", "device", "end_pos_offset",
    "eval_batch_size_prompts", "eval_every_n_wandb_logs", "exclude_bos_between_sequences", "expansion_factor",
    "feature_reinit_scale", "feature_sampling_method", "feature_sampling_window", "finetuning_method",
    "finetuning_tokens", "fisher_lambda_term", "from_pretrained_path", "hook_eval", "hook_point_eval",
    "init_encoder_as_decoder_transpose", "initial_threshold", "is_dataset_tokenized", "jumprelu_bandwidth",
    "jumprelu_init_threshold", "jumprelu_sparsity_loss_mode", "jumprelu_ste_to_input", "jumprelu_tanh_scale",
    "l0_coefficient", "l0_lambda", "l0_warm_up_steps", "l1_coefficient", "l1_normalization_fn",
    "l1_warm_up_steps", "llm_compilation_mode", "llm_device", "log_activations_store_to_wandb",
    "log_optimizer_state_to_wandb", "log_to_wandb", "log_weights_to_wandb", "logger", "lp_norm", "lr",
    "lr_decay_steps", "lr_end", "lr_scheduler_name", "lr_warm_up_steps", "matryoshka_widths",
    "mse_loss_normalization", "n_batches_for_norm_estimate", "n_batches_in_buffer", "n_checkpoints",
    "n_eval_batches", "n_eval_seqs", "n_restart_cycles", "noise_scale", "normalize_sae_decoder", "output_path",
    "pre_act_loss_coefficient", "prefetch_llm_batches", "resample_batches", "resume", "resume_from_checkpoint",
    "run_name", "sae_compilation_mode", "save_final_checkpoint", "scale_sparsity_penalty_by_decoder_norm",
    "seed", "sparsity_coefficient", "start_pos_offset", "store_batch_size", "store_batch_size_prompts",
    "streaming", "target_l0", "tokenizer_name", "tokens_per_buffer", "topk_threshold_lr",
    "total_training_steps", "total_training_tokens", "train_batch_size", "train_batch_size_tokens",
    "training_tokens", "unique_id", "use_cached_activations", "use_chat_formatting", "use_fisher",
    "use_ghost_grads", "use_matryoshka_aux_loss", "use_sparse_activations", "verbose", "wandb_entity",
    "wandb_id", "wandb_log_frequency", "wandb_project"
})  # fmt: skip
PLACES: Final = frozenset({
    "hf_hook_name", "hook_head_index", "hook_name", "hook_name_out", "hook_point", "hook_point_head_index",
    "model_from_pretrained_kwargs", "model_name",
})  # fmt: skip
HEADS: Final = {"hook_head_index_out": (None, ONE_HEAD)}
METADATA: Final = FieldTable(computed=PLACES, harmless=OF_METADATA, refused=HEADS)
CONFIG: Final = FieldTable(
    computed=PLACES | {
        "activation_fn", "activation_fn_kwargs", "activation_fn_str", "apply_b_dec_to_input", "architecture", "d_in",
        "d_out", "d_sae", "dtype", "finetuning_scaling_factor", "k", "metadata", "normalize_activations",
        "rescale_acts_by_decoder_norm", "reshape_activations",
    },
    harmless=OF_METADATA | OF_TRAINING,
    refused=HEADS | {
        "hook_names": (None, ""),
        "is_transcoder": (False, "save it by SAELens 6 as a transcoder"),
        "model_kwargs": (None, ""),
        "out_hook_point": (None, "save it by SAELens 6 as a transcoder"),
        "out_hook_point_layer": (None, "save it by SAELens 6 as a transcoder"),
        "uses_scaling_factor": (False, ""),
        "variant": (None, ""),
    },
)  # fmt: skip
ANOTHER_MODEL: Final = "it makes the values of another model than the one whose name it has"
MODEL: Final = FieldTable(
    computed=frozenset({
        "center_writing_weights", "fold_ln", "fold_value_biases", "refactor_factored_attn_matrices",
    }),
    harmless=frozenset({
        "attn_implementation", "cache_dir", "center_unembed", "default_padding_side", "default_prepend_bos", "device",
        "device_map", "dtype", "local_files_only", "low_cpu_mem_usage", "move_to_device", "n_ctx", "n_devices",
        "token", "tokenizer", "torch_dtype", "trust_remote_code", "use_auth_token", "use_safetensors",
    }),
    refused={
        "checkpoint_index": (None, ANOTHER_MODEL),
        "checkpoint_value": (None, ANOTHER_MODEL),
        "first_n_layers": (None, ANOTHER_MODEL),
        "hf_model": (None, ANOTHER_MODEL),
        "revision": ("main", ANOTHER_MODEL),
    },
)  # fmt: skip
"""The arguments of `model_from_pretrained_kwargs`, which TransformerLens's and transformers' `from_pretrained` take."""
