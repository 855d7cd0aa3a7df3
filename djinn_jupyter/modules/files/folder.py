"""A folder of a module in the format of SAELens, Gemma Scope 2 or circuit-tracer, or module.json with
module.safetensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files import circuit_tracer, gemma_scope, saelens
from djinn_jupyter.modules.files.files import (
    MOST_BYTES,
    MOST_DECLARATION,
    contents_of,
    object_in,
    pickle_among,
    tensors_in,
)
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import ModuleForm

DECLARED: Final = "module.json"
TENSORS: Final = "module.safetensors"
EXAMPLE: Final = '{"kind": "probe", "dtype": "float32"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFolder:
    """The contents of a folder, or of one layer's files in it. `digest` is the digest of these files' bytes. According
    to them the module was trained on `model`; `unknown` are their unknown fields, without values."""

    path: Path
    form: ModuleForm
    tensors: dict[str, Array]
    digest: str
    model: str | None = None
    unknown: tuple[str, ...] = ()


def read_folder(folder: Path, layer: int | None = None) -> ModuleFolder:
    """Return the module in a folder, or in circuit-tracer's file of one layer. A folder with several layers returns the
    one of `layer`. Raises UsageError where there is none, or one that cannot be computed here."""
    if folder.is_file() and folder.suffix == ".safetensors":
        return _of_layer(folder, folder.parent, circuit_tracer.layer_of(folder))
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}; a module is a folder with its files.")
    if all((folder / name).is_file() for name in (gemma_scope.CONFIGURATION, gemma_scope.WEIGHTS)):
        return _of_gemma_scope(folder)
    of_saelens = (folder / saelens.CONFIGURATION).is_file()
    if not of_saelens and not (folder / DECLARED).is_file():
        if circuit_tracer.layers_in(folder):
            return _of_layer(folder, folder, layer)
        raise UsageError(_nothing_in(folder))
    declaration = folder / (saelens.CONFIGURATION if of_saelens else DECLARED)
    tensors = folder / (saelens.WEIGHTS if of_saelens else TENSORS)
    if not tensors.is_file():
        raise UsageError(f"{folder} has {declaration.name} and no {tensors.name} beside it.")
    declared, values = contents_of(declaration, MOST_DECLARATION), contents_of(tensors, MOST_BYTES)
    digest = hashlib.blake2b(declared, digest_size=16)
    digest.update(values)
    said, found = object_in(declaration, declared), tensors_in(tensors, values)
    if not of_saelens:
        return ModuleFolder(path=folder, form=_form(said, declaration), tensors=found, digest=digest.hexdigest())
    return ModuleFolder(
        path=folder,
        form=saelens.form_of(said, str(declaration)),
        tensors=saelens.tensors_of(said, found, str(declaration)),
        digest=digest.hexdigest(),
        model=saelens.model_in(said, str(declaration)),
        unknown=tuple(saelens.unknown_in(said)),
    )


def _of_gemma_scope(folder: Path) -> ModuleFolder:
    declaration, weights = folder / gemma_scope.CONFIGURATION, folder / gemma_scope.WEIGHTS
    declared, values = contents_of(declaration, MOST_DECLARATION), contents_of(weights, MOST_BYTES)
    tensors = gemma_scope.renamed(tensors_in(weights, values))
    said = object_in(declaration, declared)
    form, model = gemma_scope.form_of(said, tensors, declaration), said.get("model_name")
    digest = hashlib.blake2b(declared, digest_size=16)
    digest.update(values)
    return ModuleFolder(
        path=folder,
        form=form,
        tensors=tensors,
        digest=digest.hexdigest(),
        model=model if isinstance(model, str) else None,
        unknown=tuple(gemma_scope.CONFIG.unknown(said)),
    )


def _of_layer(path: Path, folder: Path, layer: int | None) -> ModuleFolder:
    if path.is_file() and layer is None:
        raise UsageError(f"{path} is no file of one layer, which is named layer_4.safetensors or W_enc_4.safetensors.")
    if layer is None:
        there = len(circuit_tracer.layers_in(folder))
        raise UsageError(
            f"{folder} has transcoders of {there} layers: add them all by engine.add_transcoders "
            "(%djinn_add_transcoders), or one by its point, as in at='mlp_in.4' (--at mlp_in.4)."
        )
    found = circuit_tracer.read_layer(folder, layer)
    return ModuleFolder(
        path=path,
        form=found.form,
        tensors=found.tensors,
        digest=found.digest,
        model=found.model,
        unknown=tuple(found.unknown),
    )


def _form(declared: dict[str, Any], path: Path) -> ModuleForm:
    try:
        return msgspec.convert(declared, ModuleForm)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no form of a module, such as {EXAMPLE}: {error}.") from None


def _nothing_in(folder: Path) -> str:
    refused = gemma_scope.refused_in(folder)
    if refused is not None:
        return refused
    wanted = f"{saelens.CONFIGURATION} with {saelens.WEIGHTS} (SAELens), nor {DECLARED} with {TENSORS}"
    pickle = pickle_among(folder)
    return f"{folder} has neither {wanted}." if pickle is None else f"{folder} has neither {wanted}. {pickle}"
