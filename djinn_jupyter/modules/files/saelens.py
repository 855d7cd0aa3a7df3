"""The fields of SAELens's cfg.json. Names are those of SAELens 6 (`saes/`, `config.py`) and of all earlier versions,
whose files have the whole configuration of a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.modules.files import gemma_scope
from djinn_jupyter.modules.files.files import FieldTable, all_ones, short
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import Activation, ModuleDtype, ModuleForm, ModuleKind, Normalization
from djinn_jupyter.wire.sites import HEAD_POINTS, parse_trained

WRITES_TO_ONE_HEAD: Final = "it writes to one head alone, and a transcoder here writes to an MLP"
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
HEADS: Final = {"hook_head_index_out": (None, WRITES_TO_ONE_HEAD)}
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


# The folders of SAELens (cfg.json, sae_weights.safetensors) as a module's form. An option that is not computed here is
# refused by its name. Names and defaults as in SAELens 6 (`saes/sae.py`, `loading/pretrained_sae_loaders.py`),
# including those before 6.0.

Tensors = dict[str, Array]

CONFIGURATION: Final = "cfg.json"
WEIGHTS: Final = "sae_weights.safetensors"
ARCHITECTURES: Final[dict[str, tuple[ModuleKind, Activation]]] = {
    "standard": ("sae", "relu"),
    "jumprelu": ("sae", "jumprelu"),
    "topk": ("sae", "topk"),
    "gated": ("sae", "gated"),
    "transcoder": ("transcoder", "relu"),
    "jumprelu_transcoder": ("transcoder", "jumprelu"),
    "skip_transcoder": ("transcoder", "relu"),
    "jumprelu_skip_transcoder": ("transcoder", "jumprelu"),
}
NORMALIZATIONS: Final[dict[str, Normalization]] = {
    "none": "none",
    "layer_norm": "layer_norm",
    "constant_norm_rescale": "constant_norm_rescale",
}
DTYPES: Final[dict[str, ModuleDtype]] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
KWARGS: Final = "model_from_pretrained_kwargs"
DEFAULT_K: Final = 100
MOST_K: Final = 2**31
ALL: Final = ("W_enc", "W_dec")
ACTIVATION: Final = ("activation_fn", "activation_fn_str")
ONE_HEAD_FIELDS: Final = ("hook_head_index", "hook_point_head_index")
SCALE: Final = "scaling_factor"
CENTERED: Final = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BEHIND_A_NORM: Final = ("attn_in", "mlp_in")
SAE_HEAD_POINTS: Final = ("q", "k", "v", "q_rot", "k_rot", "z")
OF_MLP: Final = ("mlp_pre", "mlp_post")
KNOWN: Final = (*CENTERED, *BEHIND_A_NORM, *SAE_HEAD_POINTS, *OF_MLP)
OF_VALUES: Final = ("v", "z")
LOADED: Final = ("center_writing_weights", "fold_ln", "fold_value_biases", "refactor_factored_attn_matrices")
"""The ways of TransformerLens to load a model that change values: those CENTERED by a subtraction of the mean, those
BEHIND_A_NORM by its weight, those OF_VALUES by a constant, those of all HEADS in a way not computed here."""
FOLDED: Final = (
    "its factor is not in the folder: fold it in SAELens (sae.fold_activation_norm_scaling_factor, then sae.save_model)"
)
ADVICE: Final = {"expected_average_only_in": FOLDED}


def form_of(cfg: Mapping[str, Any], where: str) -> ModuleForm:
    """Return the form in a cfg.json; `where` is its path. Raises UsageError for what is not computed here."""
    architecture, k = _architecture(cfg, where)
    kind, activation = ARCHITECTURES[architecture]
    _require_computed(cfg, kind, where)
    trained_at, written_at = _trained_at(cfg, where), _place(cfg, where, "hook_name_out")
    if kind == "sae" and written_at not in (None, trained_at):
        raise UsageError(
            f"{where} has hook_name_out {short(written_at)}, and an SAE writes where it reads, {trained_at}."
        )
    return ModuleForm(
        kind=kind,
        activation=activation,
        k=k,
        dtype=_dtype(cfg, where),
        subtracts_decoder_bias=kind == "sae" and _truth(cfg, "apply_b_dec_to_input", where, default=True),
        normalization=_normalization(cfg, where),
        skip="skip" in architecture,
        by_decoder_norm=_truth(cfg, "rescale_acts_by_decoder_norm", where),
        **_loaded(cfg, kind, trained_at, where),
        trained_at=trained_at,
        written_at=None if kind == "sae" else written_at,
    )


def unknown_in(cfg: Mapping[str, Any]) -> list[str]:
    """Return the fields that are in no table."""
    loaded = (place.get(KWARGS) or {} for place in (cfg, _metadata(cfg)))
    return (
        CONFIG.unknown(cfg) + METADATA.unknown(_metadata(cfg)) + [one for said in loaded for one in MODEL.unknown(said)]
    )


def model_in(cfg: Mapping[str, Any], where: str) -> str | None:
    """Return the name of the model in a cfg.json."""
    return _place(cfg, where, "model_name")


def tensors_of(cfg: Mapping[str, Any], tensors: Tensors, where: str) -> Tensors:
    """Return the tensors used: a scaling_factor of ones, as in files before SAELens 3, is dropped. Raises UsageError
    where the file and its cfg.json contradict each other, or need what is not computed here."""
    factor = tensors.get(SCALE)
    if factor is None and cfg.get("finetuning_scaling_factor"):
        raise UsageError(f"{where} has finetuning_scaling_factor, which is not computed here; fold it into W_dec.")
    if factor is not None and not all_ones(factor):
        raise UsageError(
            f"{WEIGHTS} beside {where} has a {SCALE} of other values than 1, which is not computed here; fold it into "
            "W_dec."
        )
    _require_widths(cfg, tensors, where)
    return {name: array for name, array in tensors.items() if name != SCALE}


def _require_widths(cfg: Mapping[str, Any], tensors: Tensors, where: str) -> None:
    shapes = [tensors[name].shape for name in ALL if name in tensors and len(tensors[name].shape) == 2]
    if len(shapes) < len(ALL):
        return  # the form reports what is missing
    there = {"d_in": shapes[0][0], "d_sae": shapes[0][1], "d_out": shapes[1][1]}
    for name, width in there.items():
        if cfg.get(name) is not None and cfg[name] != width:
            raise UsageError(f"{where} has {name} {short(cfg[name])}, and the tensors beside it have {width}.")


def _architecture(cfg: Mapping[str, Any], where: str) -> tuple[str, int | None]:
    """Return the architecture, and the k of a topk."""
    named = str(_said((cfg,), ("architecture",), where) or "standard")
    given = _said((cfg,), ACTIVATION, where) or "relu"
    kwargs = cfg.get("activation_fn_kwargs")
    k = _said(({"k": cfg.get("k")}, kwargs if isinstance(kwargs, dict) else {}), ("k",), where)
    if given == "topk" and named == "standard" and k is None:
        raise UsageError(f"{where} has activation_fn 'topk' and no k.")
    if given == "topk" and named == "standard":
        named = "topk"
    if named not in ARCHITECTURES:
        raise UsageError(
            f"{where} is of architecture {named!r}, which is not computed here; there are {', '.join(ARCHITECTURES)}."
        )
    if given not in ("relu", "topk") or (given == "topk" and named != "topk"):
        raise UsageError(
            f"{where} has {_named(cfg, ACTIVATION)} {short(given)}, which is not computed here in architecture "
            f"{named!r}; there are relu, and topk of a standard one."
        )
    if named != "topk":
        return named, None
    k = DEFAULT_K if k is None else k
    if type(k) is not int or not 1 <= k <= MOST_K:
        raise UsageError(f"{where} has k {short(k)}; a topk keeps at least one feature, and at most all.")
    return named, k


def _require_computed(cfg: Mapping[str, Any], kind: ModuleKind, where: str) -> None:
    CONFIG.require_heard(cfg, where)
    if not isinstance(cfg.get("metadata") or {}, dict):
        raise UsageError(f"{where} has metadata {short(cfg['metadata'])}; it has to be an object.")
    METADATA.require_heard(_metadata(cfg), f"{where}: metadata")
    if kind == "transcoder" and cfg.get("apply_b_dec_to_input"):
        raise UsageError(f"{where} has apply_b_dec_to_input, and a transcoder's b_dec is of another point.")
    given = cfg.get("activation_fn_kwargs") or {}
    if not isinstance(given, dict) or set(given) - {"k"}:
        raise UsageError(f"{where} has activation_fn_kwargs {short(given)}, which is not computed here; there is k.")
    if _truth(cfg, "rescale_acts_by_decoder_norm", where) and _architecture(cfg, where)[0] != "topk":
        raise UsageError(f"{where} has rescale_acts_by_decoder_norm, which is computed here for topk alone.")
    reshape = cfg.get("reshape_activations") or "none"
    if reshape not in ("none", "hook_z"):
        raise UsageError(f"{where} has reshape_activations {reshape!r}, which is not computed here; there is hook_z.")
    trained_at = _place(cfg, where, "hook_name", "hook_point")
    if reshape == "hook_z" and trained_at is not None and _point(trained_at) not in ("z", None):
        raise UsageError(f"{where} has reshape_activations 'hook_z', and was trained at {trained_at}.")


def _loaded(cfg: Mapping[str, Any], kind: ModuleKind, trained_at: str | None, where: str) -> dict[str, bool]:
    """Return how the values that it reads differ from the model's, according to how TransformerLens loaded it. Raises
    UsageError where they differ in a way not computed here."""
    given = _said((cfg, _metadata(cfg)), (KWARGS,), where)
    if not isinstance(given or {}, dict):
        raise UsageError(f"{where} has {KWARGS} {short(given)}; it has to be an object.")
    inside, where = given or {}, f"{where}: {KWARGS}"
    MODEL.require_heard(inside, where)
    set_so, point = {one for one in LOADED if _truth(inside, one, where)}, _point(trained_at)
    wrong = [one for one in LOADED if one in set_so and not _computed(one, point, kind)]
    if wrong:
        at = trained_at or "a point that the file does not name"
        raise UsageError(f"{where} has {wrong[0]}, which changes the values at {at} in a way not computed here.")
    without_biases = "fold_value_biases" in set_so and point in OF_VALUES
    return {
        "centered": "center_writing_weights" in set_so and point in CENTERED,
        "norm_folded": "fold_ln" in set_so and (without_biases or point in BEHIND_A_NORM),
        "value_biases_folded": without_biases,
    }


def _computed(loaded: str, point: str | None, kind: ModuleKind) -> bool:
    """Return whether the values at a point of a model loaded in a way follow from the model's own."""
    wrong = SAE_HEAD_POINTS if loaded == "refactor_factored_attn_matrices" else ()
    return point in KNOWN and point not in wrong and (loaded != "center_writing_weights" or kind == "sae")


def _trained_at(cfg: Mapping[str, Any], where: str) -> str | None:
    """Return the place that the file names, with its head where it reads only one. SAELens writes hook_mlp_in for a
    transcoder of Gemma Scope 2, which reads after the norm, as its hf_hook_name says."""
    named, of_gemma = (
        _place(cfg, where, "hook_name", "hook_point"),
        gemma_scope.site_of(_place(cfg, where, "hf_hook_name")),
    )
    if of_gemma is not None and (named or "").endswith(".hook_mlp_in"):
        named = of_gemma
    head = _said((cfg, _metadata(cfg)), ONE_HEAD_FIELDS, where)
    if head is None:
        return named
    if type(head) is not int or not 0 <= head < MOST_K or _point(named) not in HEAD_POINTS:
        raise UsageError(f"{where} has {_named(cfg, ONE_HEAD_FIELDS)} {short(head)}, and {named} has no such head.")
    if (cfg.get("reshape_activations") or "none") != "none":
        raise UsageError(
            f"{where} has {_named(cfg, ONE_HEAD_FIELDS)} {head} and reshape_activations, which is for all heads."
        )
    return f"{named}[{head}]"


def _point(trained_at: str | None) -> str | None:
    try:
        site = None if trained_at is None else parse_trained(trained_at)
    except UnknownSite:
        return None
    return None if site is None or site.path is not None else site.point


def _truth(said: Mapping[str, Any], name: str, where: str, *, default: bool = False) -> bool:
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{where} has {name} {short(value)}; it has to be true or false.")
    return default if value is None else value


def _normalization(cfg: Mapping[str, Any], where: str) -> Normalization:
    named = cfg.get("normalize_activations")
    if isinstance(named, bool):  # before 4.0
        named = "expected_average_only_in" if named else "none"
    named = "none" if named is None else str(named)
    if named not in NORMALIZATIONS:
        advice = ADVICE.get(named, f"there are {', '.join(NORMALIZATIONS)}")
        raise UsageError(f"{where} has normalize_activations {named!r}, which is not computed here; {advice}.")
    return NORMALIZATIONS[named]


def _dtype(cfg: Mapping[str, Any], where: str) -> ModuleDtype:
    named = str(cfg.get("dtype") or "float32").removeprefix("torch.")
    if named not in DTYPES:
        raise UsageError(f"{where} has dtype {named!r}, which is not computed here; there are {', '.join(DTYPES)}.")
    return DTYPES[named]


def _metadata(cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    found = cfg.get("metadata")
    return found if isinstance(found, dict) else {}


def _place(cfg: Mapping[str, Any], where: str, *names: str) -> str | None:
    """Return the text that the file gives by one of these names, in cfg.json or in its metadata."""
    named = _said((cfg, _metadata(cfg)), names, where)
    if named is not None and not (isinstance(named, str) and len(named) <= 1024):
        name = _named(cfg, names)
        raise UsageError(f"{where} has {name} {short(named)}; it has to be a text of at most 1,024 letters.")
    return named


def _named(cfg: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return which of several names a file uses."""
    places = (cfg, _metadata(cfg))
    return next(name for place in places for name in names if not CONFIG.is_unset(name, place.get(name)))


def _said(places: Iterable[Mapping[str, Any]], names: Sequence[str], where: str) -> Any:
    """Return a file's value by one of several names, in one of several places. Raises UsageError where it has two
    different values."""
    found = [place[name] for place in places for name in names if not CONFIG.is_unset(name, place.get(name))]
    if any(one != found[0] for one in found):
        raise UsageError(f"{where} contradicts itself: it has {names[0]} {' and '.join(map(short, found))}.")
    return found[0] if found else None
