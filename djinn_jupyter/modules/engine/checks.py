"""From a form and the tensors of a file to the arithmetic of a module. Names, shapes and numbers are checked first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.engine.arithmetic import Arithmetic, Dictionary, Linear
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import TRANSCODERS, ModuleForm

DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FLOATING: Final = ("float32", "float16", "bfloat16", "float64")
LINEAR: Final = ("probe", "tuned_lens")
_OF_ACTIVATIONS: Final = {
    "relu": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
}
Shapes = Mapping[str, tuple[int, ...]]


def widths_of(form: ModuleForm, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Return the widths before and after the module. Raises UsageError where its tensors have other names or shapes
    than its form requires."""
    names = _names(form, arrays)
    missing = [name for name in names if name not in arrays]
    unknown = sorted(set(arrays) - set(names))
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)} besides"
        raise UsageError(f"The file {what}: a module of this form ({_spell(form)}) has {', '.join(names)}.")
    first = arrays[names[0]]
    if len(first.shape) != 2 or 0 in first.shape:
        raise UsageError(f"{names[0]} has shape {list(first.shape)}; it has to be a matrix.")
    features_first = form.kind in LINEAR or form.encoder_rows
    inputs, features = first.shape[::-1] if features_first else first.shape
    _require_shapes(arrays, _shapes(form, arrays, inputs, features))
    _require_possible(form, inputs, features)
    return inputs, features


def _names(form: ModuleForm, arrays: Mapping[str, Array]) -> tuple[str, ...]:
    if form.kind in LINEAR:
        return ("weight", "bias")
    own = _OF_ACTIVATIONS[form.activation]
    if "log_threshold" in arrays and form.activation == "jumprelu":  # before SAELens 4
        own = ("b_enc", "log_threshold")
    return ("W_enc", *own, "W_dec", "b_dec", *(("W_skip",) if form.skip else ()))


def _shapes(form: ModuleForm, arrays: Mapping[str, Array], inputs: int, features: int) -> Shapes:
    names = _names(form, arrays)
    if form.kind in LINEAR:
        return {"weight": (features, inputs), "bias": (features,)}
    decoder = arrays["W_dec"].shape
    written = inputs if form.kind == "sae" else (decoder or (0,))[-1]
    layers = decoder[1:2] if form.kind == "cross_layer_transcoder" and len(decoder) == 3 else ()
    matrices: dict[str, tuple[int, ...]] = {
        "W_enc": (features, inputs) if form.encoder_rows else (inputs, features),
        "W_dec": (features, *layers, written),
        "b_dec": (written,),
        "W_skip": (inputs, written) if form.kind == "cross_layer_transcoder" else (written, inputs),
    }
    return {name: matrices.get(name, (features,)) for name in names}


def _require_shapes(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    for name, shape in shapes.items():
        found = arrays[name]
        if found.dtype not in FLOATING:
            raise UsageError(f"{name} is of dtype {found.dtype}; it has to be one of {', '.join(FLOATING)}.")
        if found.shape != shape:
            raise UsageError(f"{name} has shape {list(found.shape)}; beside the others it has to be {list(shape)}.")


def _require_possible(form: ModuleForm, inputs: int, features: int) -> None:
    if form.kind == "tuned_lens" and inputs != features:
        raise UsageError(f"weight has shape [{features}, {inputs}]; that of a tuned lens is square.")
    unused = _unused(form)
    if unused is not None:
        raise UsageError(f"A module of kind {form.kind} and activation {form.activation} has no {unused}.")
    if form.activation == "topk" and not 1 <= (form.k or 0) <= features:
        raise UsageError(f"k is {form.k}; a topk of {features} features keeps 1 to {features}.")
    if form.kind in TRANSCODERS and form.subtracts_decoder_bias:
        raise UsageError("A transcoder's b_dec is of another point, so it is not subtracted from what it reads.")
    if form.skip and form.kind not in TRANSCODERS:
        raise UsageError(f"A module of kind {form.kind} has no W_skip, which is of transcoders.")
    if form.kind == "cross_layer_transcoder" and (form.by_decoder_norm or form.normalization != "none"):
        raise UsageError("A cross-layer transcoder has neither by_decoder_norm nor a normalization.")


def _unused(form: ModuleForm) -> str | None:
    """Return the name of a field that is set but unused by the arithmetic of such a form; None without one."""
    plain = ModuleForm(kind=form.kind, dtype=form.dtype)
    reads = {"kind", "dtype", "trained_at"}
    if form.kind not in LINEAR:
        reads |= {"activation", "normalization", "encoder_rows", "subtracts_decoder_bias", "skip", "written_at"}
        reads |= {"norm_folded", "value_biases_folded"}
        reads |= {"k", "by_decoder_norm"} if form.activation == "topk" else set()
        reads |= set() if form.kind in TRANSCODERS else {"centered"}
    left = (one for one in form.__struct_fields__ if one not in reads)
    return next((one for one in left if getattr(form, one) != getattr(plain, one)), None)


def require_layers(form: ModuleForm, arrays: Mapping[str, Array], layer: int, layers: int) -> None:
    """Raise UsageError unless a cross-layer transcoder has one decoder for each layer from its own on."""
    if form.kind != "cross_layer_transcoder":
        return
    shape, wanted = arrays["W_dec"].shape, layers - layer
    if len(shape) != 3 or shape[1] != wanted:
        raise UsageError(
            f"W_dec has shape {list(shape)}; a cross-layer transcoder at layer {layer} of {layers} has "
            f"[features, {wanted}, width], a decoder for each layer from its own on: it is of another model, or of "
            "another layer."
        )


def require_written(form: ModuleForm, arrays: Mapping[str, Array], width: int | None) -> None:
    """Raise UsageError where a transcoder writes vectors of another width than the point's; None: it writes none."""
    written = arrays["W_dec"].shape[-1] if form.kind in TRANSCODERS else width
    if width is not None and written != width:
        raise UsageError(
            f"The transcoder writes {written} numbers at each position, and the MLP makes {width}: it is of another "
            "model."
        )


def bytes_of(form: ModuleForm, arrays: Mapping[str, Array]) -> int:
    """Return the bytes that the module takes on the device."""
    return sum(math.prod(array.shape) for array in arrays.values()) * DTYPES[form.dtype].itemsize


def on_device(name: str, array: Array, form: ModuleForm, device: torch.device) -> Tensor:
    """Return a tensor of the module, in its dtype. Raises UsageError where numbers of it are not finite in that
    dtype."""
    tensor = to_tensor(array).to(device=device, dtype=DTYPES[form.dtype])
    if not bool(torch.isfinite(tensor).all()):
        raise UsageError(f"{name} has NaN or infinity in {form.dtype}, so the module computes nothing of use.")
    if name == "W_enc" and not form.encoder_rows:
        return tensor.T.contiguous()
    return tensor.movedim(1, 0).contiguous() if name == "W_dec" and tensor.ndim == 3 else tensor


def arithmetic_of(form: ModuleForm, tensors: Mapping[str, Tensor]) -> Arithmetic:
    """Return the arithmetic of checked tensors."""
    if form.kind in LINEAR:
        return Linear(weight_FD=tensors["weight"], bias_F=tensors["bias"], adds=form.kind == "tuned_lens")
    threshold = tensors.get("threshold")
    if "log_threshold" in tensors:
        threshold = tensors["log_threshold"].exp()
    decoder, later, skip = tensors["W_dec"], None, tensors.get("W_skip")
    if form.kind == "cross_layer_transcoder":
        decoder, later, skip = decoder[0], decoder[1:], None if skip is None else skip.T
    return Dictionary(
        form=form,
        encoder_FD=tensors["W_enc"],
        bias_F=tensors["b_gate" if form.activation == "gated" else "b_enc"],
        decoder_FO=decoder,
        decoder_bias_O=tensors["b_dec"],
        threshold_F=threshold,
        gate=(tensors["r_mag"], tensors["b_mag"]) if form.activation == "gated" else None,
        length_F=decoder.norm(dim=-1) if form.by_decoder_norm else None,
        skip_OD=skip,
        later_LFO=later,
    )


def _spell(form: ModuleForm) -> str:
    return form.kind.replace("_", " ") if form.kind in LINEAR else f"{form.kind}, {form.activation}"
