"""The files of circuit-tracer as a module's form: transcoders by layer (`layer_4.safetensors`), and a cross-layer
transcoder (`W_enc_4.safetensors`, `W_dec_4.safetensors`), with a module for each layer.

Names as in circuit-tracer (`transcoder/single_layer_transcoder.py`, `cross_layer_transcoder.py`, `utils/hf_utils.py`).
The fields of `config.yaml` are read line by line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.files import (
    MOST_BYTES,
    MOST_DECLARATION,
    FieldTable,
    ModuleFolder,
    any_negative,
    contents_of,
    short,
    tensors_in,
)
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import Activation, ModuleDtype, ModuleForm, ModuleKind

CONFIGURATION: Final = "config.yaml"
OF_LAYER: Final = re.compile(r"(?P<kind>layer|W_enc)_(?P<layer>0|[1-9]\d{0,5})\.safetensors")
QUOTED: Final = re.compile(r"""\s*(["'])(.*)\1\s*(#.*)?""")
FIELD: Final = re.compile(r"(\w+):(?:[ \t]+(.*))?", re.DOTALL)
CONTINUED: Final = (" ", "\t", "- ")
UNSET: Final = ("", "null", "~", "false", "[]", "{}")
CONFIG: Final = FieldTable(
    computed=frozenset({"activation", "feature_input_hook", "feature_output_hook", "model_kind", "model_name"}),
    harmless=frozenset({"k", "repo_id", "revision", "scan", "scan_name", "subfolder", "transcoders"}),
    refused={},
)  # `k` belongs to topk, which is refused
KINDS: Final[dict[str, ModuleKind]] = {
    "transcoder_set": "transcoder", "cross_layer_transcoder": "cross_layer_transcoder",
}  # fmt: skip
ACTIVATIONS: Final = (("relu",), ("jumprelu", "jump_relu"))  # without and with a threshold
THRESHOLD: Final = "activation_function.threshold"
DTYPES: Final[dict[str, ModuleDtype]] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
Tensors = dict[str, Array]


def layers_in(folder: Path) -> list[int]:
    """Return the layers for which a folder has a transcoder, in order; none where it is not a folder of
    circuit-tracer."""
    found = (OF_LAYER.fullmatch(one.name) for one in folder.iterdir())
    return sorted({int(one["layer"]) for one in found if one is not None})


def layer_of(path: Path) -> int | None:
    """Return the layer in the name of a file."""
    named = OF_LAYER.fullmatch(path.name)
    return None if named is None else int(named["layer"])


def read_layer(folder: Path, layer: int) -> ModuleFolder:
    """Return the transcoder of one layer. Raises UsageError where there is none that can be computed here."""
    own = folder / f"layer_{layer}.safetensors"
    if own.is_file():
        return _made("transcoder", folder, layer, {"": own})
    halves = {name: folder / f"{name}_{layer}.safetensors" for name in ("W_enc", "W_dec")}
    for path in halves.values():
        if not path.is_file():
            there = ", ".join(map(str, layers_in(folder)))
            raise UsageError(f"{folder} has no {path.name}; it has transcoders of layers {there}.")
    return _made("cross_layer_transcoder", folder, layer, halves)


def _made(kind: ModuleKind, folder: Path, layer: int, paths: Mapping[str, Path]) -> ModuleFolder:
    digest, tensors = hashlib.blake2b(digest_size=16), Tensors()
    said = _said(folder)
    named = ((name, said.get(f"feature_{name}_hook")) for name in ("input", "output"))
    hooks = {name: hook for name, hook in named if hook is not None}
    for path in paths.values():
        values = contents_of(path, MOST_BYTES)
        digest.update(values)
        tensors |= dict(_named(kind, layer, path, tensors_in(path, values)))
    digest.update(repr(sorted(hooks.items())).encode())
    _require_computed(said, kind, tensors, folder / CONFIGURATION)
    activation: Activation = "jumprelu" if "threshold" in tensors else "relu"
    form = ModuleForm(
        kind=kind,
        dtype=_dtype(tensors, next(iter(paths.values()))),
        activation=activation,
        encoder_rows=True,
        skip="W_skip" in tensors,
        trained_at=_place(hooks.get("input"), layer),
        written_at=_place(hooks.get("output"), layer),
    )
    model, unknown = said.get("model_name"), tuple(CONFIG.unknown(said))
    return ModuleFolder(
        path=folder, form=form, tensors=tensors, digest=digest.hexdigest(), model=model, unknown=unknown
    )


def _require_computed(said: Mapping[str, str | None], kind: ModuleKind, tensors: Tensors, where: Path) -> None:
    CONFIG.require_heard(said, str(where))
    declared, activation = said.get("model_kind"), said.get("activation")
    for name in ("feature_input_hook", "feature_output_hook"):
        if not re.fullmatch(r"[A-Za-z_][\w.]{0,999}", said.get(name) or "none"):
            raise UsageError(f"{where} has {name} {short(said[name])}, which is no hook, such as mlp.hook_in.")
    if declared is not None and KINDS.get(declared) != kind:
        raise UsageError(f"{where} has model_kind {short(declared)}, and the files beside it are a {kind}.")
    if activation is not None and activation not in ACTIVATIONS["threshold" in tensors]:
        raise UsageError(f"{where} has activation {short(activation)}, which is not computed here with these files.")
    if "threshold" in tensors and any_negative(tensors["threshold"]):
        raise UsageError(f"The threshold of {where.parent} has numbers below 0, which is not computed here.")


def _named(kind: ModuleKind, layer: int, path: Path, tensors: Tensors) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a file by their names in a module."""
    for name, array in tensors.items():
        if kind == "cross_layer_transcoder":
            plain = name.removesuffix(f"_{layer}")
            if plain == name:
                raise UsageError(f"{path} has {name}, which is no tensor of layer {layer}.")
            yield plain, array
        else:
            yield "threshold" if name == THRESHOLD else name, array


def _dtype(tensors: Tensors, path: Path) -> ModuleDtype:
    if "W_enc" not in tensors:
        raise UsageError(f"{path} has no W_enc, so it is no transcoder of circuit-tracer.")
    return DTYPES.get(tensors["W_enc"].dtype, "float32")


def _said(folder: Path) -> dict[str, str | None]:
    """Return the fields of config.yaml as texts, None for one without a value; none where there is no such file. Raises
    UsageError for an invalid line, and for a repeated field."""
    path, said, last = folder / CONFIGURATION, dict[str, str](), None
    if not path.is_file():
        return {}
    for line in contents_of(path, MOST_DECLARATION).decode("utf-8", "replace").splitlines():
        field = FIELD.fullmatch(line)
        if field is not None:
            last = field[1]
            if last in said:
                raise UsageError(f"{path} contradicts itself: it has {last} twice.")
            quoted = QUOTED.fullmatch(field[2] or "")
            said[last] = re.sub(r"(^|\s)#.*", "", field[2] or "").strip() if quoted is None else quoted[2]
        elif last is not None and line.strip() and line.startswith(CONTINUED):
            said[last] += line.strip()
        elif line.strip() and not line.startswith(("#", "---", "...")):
            raise UsageError(f"{path} has a line that is no field, such as model_kind: transcoder_set: {short(line)}.")
    return {name: None if text.lower() in UNSET else text for name, text in said.items()}


def _place(hook: str | None, layer: int) -> str | None:
    return None if hook is None else f"blocks.{layer}.{hook}"
