"""A folder of a module in the format of SAELens, Gemma Scope 2 or circuit-tracer, or module.json with
module.safetensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files import circuit_tracer, gemma_scope, saelens
from djinn_jupyter.modules.files.files import ModuleFolder, pickle_among, read_pair
from djinn_jupyter.wire.modules import ModuleForm

DECLARED: Final = "module.json"
TENSORS: Final = "module.safetensors"
EXAMPLE: Final = '{"kind": "probe", "dtype": "float32"}'


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
    said, found, digest = read_pair(declaration, tensors)
    if not of_saelens:
        return ModuleFolder(path=folder, form=_form(said, declaration), tensors=found, digest=digest)
    return ModuleFolder(
        path=folder,
        form=saelens.form_of(said, str(declaration)),
        tensors=saelens.tensors_of(said, found, str(declaration)),
        digest=digest,
        model=saelens.model_in(said, str(declaration)),
        unknown=tuple(saelens.unknown_in(said)),
    )


def _of_gemma_scope(folder: Path) -> ModuleFolder:
    declaration = folder / gemma_scope.CONFIGURATION
    said, found, digest = read_pair(declaration, folder / gemma_scope.WEIGHTS)
    tensors, model = gemma_scope.renamed(found), said.get("model_name")
    return ModuleFolder(
        path=folder,
        form=gemma_scope.form_of(said, tensors, declaration),
        tensors=tensors,
        digest=digest,
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
    return replace(circuit_tracer.read_layer(folder, layer), path=path)


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
