"""The folders of SAELens (cfg.json, sae_weights.safetensors) as a module's form. An option that is not computed here is
refused by its name.

Names and defaults as in SAELens 6 (`saes/sae.py`, `loading/pretrained_sae_loaders.py`), those of before 6.0 included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.module_files import gemma_scope
from djinn_jupyter.module_files.field_table import short
from djinn_jupyter.module_files.numbers import all_ones
from djinn_jupyter.module_files.saelens_fields import CONFIG, METADATA, MODEL
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.module_form import Activation, ModuleDtype, ModuleForm, ModuleKind, Normalization
from djinn_jupyter.wire.sites import HEAD_POINTS, parse_trained

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
ONE_HEAD: Final = ("hook_head_index", "hook_point_head_index")
SCALE: Final = "scaling_factor"
CENTERED: Final = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BEHIND_A_NORM: Final = ("attn_in", "mlp_in")
HEADS: Final = ("q", "k", "v", "q_rot", "k_rot", "z")
OF_MLP: Final = ("mlp_pre", "mlp_post")
KNOWN: Final = (*CENTERED, *BEHIND_A_NORM, *HEADS, *OF_MLP)
OF_VALUES: Final = ("v", "z")
LOADED: Final = ("center_writing_weights", "fold_ln", "fold_value_biases", "refactor_factored_attn_matrices")
"""The ways of TransformerLens to load a model that change values: those CENTERED by a subtraction of the mean, those
BEHIND_A_NORM by its weight, those OF_VALUES by a constant, those of all HEADS in a way not computed here."""
FOLDED: Final = (
    "its factor is not in the folder: fold it in SAELens (sae.fold_activation_norm_scaling_factor, then sae.save_model)"
)
ADVICE: Final = {"expected_average_only_in": FOLDED}


def form_of(cfg: Mapping[str, Any], where: str) -> ModuleForm:
    """Return the form that a cfg.json says; `where` is its path. Raises UsageError for what is not computed here."""
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
    """Return the name of the model that a cfg.json says it was trained on."""
    return _place(cfg, where, "model_name")


def tensors_of(cfg: Mapping[str, Any], tensors: Tensors, where: str) -> Tensors:
    """Return the tensors that are computed with: a scaling_factor of ones, as in files of before SAELens 3, is none.
    Raises UsageError where the file and its cfg.json contradict each other, or need what is not computed here."""
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
        return  # the form says what is missing
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
    """Return how the values that it reads differ from the model's, by the way that TransformerLens loaded it. Raises
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
    """Return whether the values at a point of a model that was loaded in a way follow from the model's."""
    wrong = HEADS if loaded == "refactor_factored_attn_matrices" else ()
    return point in KNOWN and point not in wrong and (loaded != "center_writing_weights" or kind == "sae")


def _trained_at(cfg: Mapping[str, Any], where: str) -> str | None:
    """Return the place that the file names, with its head where it reads one alone. SAELens writes hook_mlp_in for a
    transcoder of Gemma Scope 2, which reads behind the norm, as its hf_hook_name says."""
    named, of_gemma = (
        _place(cfg, where, "hook_name", "hook_point"),
        gemma_scope.site_of(_place(cfg, where, "hf_hook_name")),
    )
    if of_gemma is not None and (named or "").endswith(".hook_mlp_in"):
        named = of_gemma
    head = _said((cfg, _metadata(cfg)), ONE_HEAD, where)
    if head is None:
        return named
    if type(head) is not int or not 0 <= head < MOST_K or _point(named) not in HEAD_POINTS:
        raise UsageError(f"{where} has {_named(cfg, ONE_HEAD)} {short(head)}, and {named} has no such head.")
    if (cfg.get("reshape_activations") or "none") != "none":
        raise UsageError(f"{where} has {_named(cfg, ONE_HEAD)} {head} and reshape_activations, which is for all heads.")
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
    """Return that of several names by which a file says something."""
    places = (cfg, _metadata(cfg))
    return next(name for place in places for name in names if not CONFIG.is_unset(name, place.get(name)))


def _said(places: Iterable[Mapping[str, Any]], names: Sequence[str], where: str) -> Any:
    """Return what a file says by one of several names, in one of several places. Raises UsageError where it says two
    things."""
    found = [place[name] for place in places for name in names if not CONFIG.is_unset(name, place.get(name))]
    if any(one != found[0] for one in found):
        raise UsageError(f"{where} contradicts itself: it has {names[0]} {' and '.join(map(short, found))}.")
    return found[0] if found else None
