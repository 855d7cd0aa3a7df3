"""The folders of SAELens (cfg.json, sae_weights.safetensors) as a module's form. An option that is not computed here is
refused by its name.

Names and defaults as in SAELens 6 (`saes/sae.py`, `loading/pretrained_sae_loaders.py`), those of before 6.0 included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.module_form import Activation, ModuleDtype, ModuleForm, ModuleKind, Normalization

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
DEFAULT_K: Final = 100
FOLDED: Final = (
    "its factor is not in the folder: fold it in SAELens (sae.fold_activation_norm_scaling_factor, then sae.save_model)"
)
ADVICE: Final = {"expected_average_only_in": FOLDED}


def form_of(cfg: Mapping[str, Any], where: str) -> ModuleForm:
    """Return the form that a cfg.json says; `where` is its path. Raises UsageError for what is not computed here."""
    architecture, k = _architecture(cfg, where)
    kind, activation = ARCHITECTURES[architecture]
    _require_computed(cfg, kind, where)
    return ModuleForm(
        kind=kind,
        activation=activation,
        k=k,
        dtype=_dtype(cfg, where),
        subtracts_decoder_bias=kind == "sae" and bool(cfg.get("apply_b_dec_to_input", True)),
        normalization=_normalization(cfg, where),
        skip="skip" in architecture,
        by_decoder_norm=bool(cfg.get("rescale_acts_by_decoder_norm", False)) and activation == "topk",
        trained_at=_place(cfg, "hook_name", "hook_point"),
        written_at=_place(cfg, "hook_name_out") if kind == "transcoder" else None,
    )


def _architecture(cfg: Mapping[str, Any], where: str) -> tuple[str, int | None]:
    """Return the architecture, and the k of a topk."""
    named = str(cfg.get("architecture", "standard"))
    given = cfg.get("activation_fn_str", cfg.get("activation_fn", "relu"))
    kwargs = cfg.get("activation_fn_kwargs")
    k = cfg.get("k", kwargs.get("k") if isinstance(kwargs, dict) else None)
    if given == "topk":
        named = "topk"
    if named not in ARCHITECTURES:
        raise UsageError(
            f"{where} is of architecture {named!r}, which is not computed here; there are {', '.join(ARCHITECTURES)}."
        )
    if given not in ("relu", "topk"):
        raise UsageError(f"{where} has activation_fn {given!r}, which is not computed here; there are relu and topk.")
    if named != "topk":
        return named, None
    k = DEFAULT_K if k is None else k
    if type(k) is not int or k < 1:
        raise UsageError(f"{where} has k {k!r}; a topk keeps at least one feature.")
    return named, k


def _require_computed(cfg: Mapping[str, Any], kind: ModuleKind, where: str) -> None:
    if kind == "transcoder" and cfg.get("apply_b_dec_to_input"):
        raise UsageError(f"{where} has apply_b_dec_to_input, and a transcoder's b_dec is of another point.")
    if cfg.get("finetuning_scaling_factor"):
        raise UsageError(f"{where} has finetuning_scaling_factor, which is not computed here; fold it into W_dec.")
    reshape = cfg.get("reshape_activations", "none")
    if reshape not in ("none", "hook_z"):
        raise UsageError(f"{where} has reshape_activations {reshape!r}, which is not computed here; there is hook_z.")


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
    named = str(cfg.get("dtype", "float32")).removeprefix("torch.")
    if named not in DTYPES:
        raise UsageError(f"{where} has dtype {named!r}, which is not computed here; there are {', '.join(DTYPES)}.")
    return DTYPES[named]


def _place(cfg: Mapping[str, Any], *names: str) -> str | None:
    """Return the place that the files give by one of these names, of cfg.json or of its metadata."""
    metadata = cfg.get("metadata")
    inside = metadata if isinstance(metadata, dict) else {}
    named = next((found[name] for found in (cfg, inside) for name in names if name in found), None)
    return named if isinstance(named, str) and 0 < len(named) <= 1024 else None
