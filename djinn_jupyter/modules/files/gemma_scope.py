"""The folders of Gemma Scope 2 (config.json, params.safetensors) as a module's form: SAEs and transcoders of one layer.

Names as SAELens 6 reads them (`gemma_3_sae_huggingface_loader`). Its cross-layer transcoders and crosscoders, and the
numpy archives of the first Gemma Scope, are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.files import FieldTable, short
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from djinn_jupyter.wire.modules import ModuleDtype, ModuleForm

CONFIGURATION: Final = "config.json"
WEIGHTS: Final = "params.safetensors"
SKIP: Final = "affine_skip_connection"
NAMES: Final = {
    "w_enc": "W_enc",
    "w_dec": "W_dec",
    "b_enc": "b_enc",
    "b_dec": "b_dec",
    "threshold": "threshold",
    SKIP: "W_skip",
}
HOOK: Final = re.compile(r"model\.(?:language_model\.)?layers\.(0|[1-9]\d{0,5})\.([\w.]{1,100})")
READ: Final = {
    "output": "resid_post",
    "self_attn.o_proj.input": "z",
    "pre_feedforward_layernorm.output": "mlp_in",
    "post_feedforward_layernorm.output": "mlp_out_post",
}
WRITTEN: Final = "post_feedforward_layernorm.output"
SAVED: Final = "load it by SAELens (SAE.from_pretrained) and save that (sae.save_model)"
KINDS: Final = {"sae": False, "transcoder": True}  # by `type`: whether it writes to another point
CONFIG: Final = FieldTable(
    computed=frozenset({
        "affine_connection", "architecture", "hf_hook_point_in", "hf_hook_point_out", "model_name", "type", "width",
    }),
    harmless=frozenset({"l0"}),
    refused={},
)  # fmt: skip
Tensors = dict[str, Array]


def form_of(config: Mapping[str, Any], tensors: Tensors, where: Path) -> ModuleForm:
    """Return the form in a config.json. Raises UsageError for what is not computed here."""
    _require_computed(config, tensors, where)
    written, named = _written(config), config.get("hf_hook_point_in")
    return ModuleForm(
        kind="sae" if written is None else "transcoder",
        dtype=_dtype(tensors),
        activation="jumprelu",
        skip="W_skip" in tensors,
        trained_at=site_of(named) or named or None,
        written_at=None if written is None else f"blocks.{written[0]}.hook_mlp_out",
    )


def _require_computed(config: Mapping[str, Any], tensors: Tensors, where: Path) -> None:
    CONFIG.require_heard(config, str(where))
    for name in ("model_name", "hf_hook_point_in", "hf_hook_point_out"):
        if config.get(name) and not (isinstance(config[name], str) and len(config[name]) <= 1024):
            raise UsageError(f"{where} has {name} {short(config[name])}; it has to be a text of at most 1,024 letters.")
    architecture, out = config.get("architecture"), config.get("hf_hook_point_out")
    if architecture != "jump_relu":
        raise UsageError(
            f"{where} is of architecture {architecture!r}, which is not computed here; there is jump_relu."
        )
    written = _written(config)
    if out is not None and out != config.get("hf_hook_point_in") and (written is None or written[1] != WRITTEN):
        raise UsageError(f"{where} has hf_hook_point_out {out!r}, which is not computed here.")
    kind = config.get("type")
    if kind is not None and KINDS.get(str(kind)) != (written is not None):
        raise UsageError(f"{where} has type {short(kind)}, which is not computed here with hf_hook_point_out {out!r}.")
    width, encoder = config.get("width"), tensors.get("W_enc")
    if width is not None and encoder is not None and width != encoder.shape[-1]:
        raise UsageError(f"{where} has width {short(width)}, and w_enc has shape {list(encoder.shape)}.")
    if bool(config.get("affine_connection")) != ("W_skip" in tensors):
        raise UsageError(
            f"{where} has affine_connection {config.get('affine_connection')!r}, and {WEIGHTS} has "
            f"{'a' if 'W_skip' in tensors else 'no'} {SKIP}."
        )


def site_of(hook: object) -> str | None:
    """Return the site of a hook in these files; None for an unknown hook."""
    found = HOOK.fullmatch(str(hook or ""))
    return None if found is None or found[2] not in READ else f"{READ[found[2]]}.{int(found[1])}"


def renamed(tensors: Tensors) -> Tensors:
    """Return the tensors by their names in a module. The skip is [inputs, outputs] in these files, and [outputs,
    inputs] in a transcoder."""
    turned = {name: _turned(array) if name == SKIP else array for name, array in tensors.items()}
    return {NAMES.get(name, name): array for name, array in turned.items()}


def refused_in(folder: Path) -> str | None:
    """Return a sentence about files of Gemma Scope that are not read here; None where there are none."""
    if (folder / "params.npz").is_file():
        return f"{folder} has params.npz of Gemma Scope, which says nothing of its form: {SAVED}."
    if any(folder.glob("params_layer_*.safetensors")):
        return f"{folder} has a crosscoder or cross-layer transcoder of Gemma Scope 2, which is not computed here."
    if (folder / WEIGHTS).is_file():
        return f"{folder} has {WEIGHTS} of Gemma Scope 2 and no {CONFIGURATION} beside it."
    return None


def _written(config: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the layer and the place that a transcoder writes to; None for an SAE, which names the point it reads."""
    same = config.get("hf_hook_point_out") == config.get("hf_hook_point_in")
    return None if same else _place(config, "hf_hook_point_out")


def _place(config: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Return the layer and the place in it that a hook names; None for an unknown hook."""
    found = HOOK.fullmatch(str(config.get(name) or ""))
    return None if found is None else (int(found[1]), found[2])


def _dtype(tensors: Tensors) -> ModuleDtype:
    kept: dict[str, ModuleDtype] = {"float16": "float16", "bfloat16": "bfloat16"}
    return kept.get(tensors["W_enc"].dtype, "float32") if "W_enc" in tensors else "float32"


def _turned(array: Array) -> Array:
    """Return a transposed matrix; the form reports arrays of other shapes."""
    if len(array.shape) != 2:
        return array
    of = np.frombuffer(array.data, dtype=f"V{ITEM_BYTES[array.dtype]}").reshape(array.shape)
    turned = np.ascontiguousarray(of.T)
    return Array(dtype=array.dtype, shape=turned.shape, data=memoryview(turned.tobytes()))
