"""A folder of a module: that of SAELens, or module.json with module.safetensors beside it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.module_files import saelens
from djinn_jupyter.module_files.safetensors_file import tensors_in
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.module_form import ModuleForm

DECLARED: Final = "module.json"
TENSORS: Final = "module.safetensors"
MOST_DECLARATION: Final = 2**20
MOST_BYTES: Final = 2**32  # what one message carries
PICKLES: Final = (".pt", ".pth", ".bin", ".pkl")
EXAMPLE: Final = '{"kind": "probe", "dtype": "float32"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFolder:
    """The contents of a folder. `digest` is of the bytes of its files."""

    path: Path
    form: ModuleForm
    tensors: dict[str, Array]
    digest: str


def read_folder(folder: Path) -> ModuleFolder:
    """Return the module in a folder. Raises UsageError where there is none, or one that cannot be computed here."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}; a module is a folder with its files.")
    of_saelens = (folder / saelens.CONFIGURATION).is_file()
    if not of_saelens and not (folder / DECLARED).is_file():
        raise UsageError(_nothing_in(folder))
    declaration = folder / (saelens.CONFIGURATION if of_saelens else DECLARED)
    tensors = folder / (saelens.WEIGHTS if of_saelens else TENSORS)
    if not tensors.is_file():
        raise UsageError(f"{folder} has {declaration.name} and no {tensors.name} beside it.")
    declared = _contents(declaration, MOST_DECLARATION)
    said = _object(declaration, declared)
    form = saelens.form_of(said, str(declaration)) if of_saelens else _form(said, declaration)
    values = _contents(tensors, MOST_BYTES)
    digest = hashlib.blake2b(declared, digest_size=16)
    digest.update(values)
    return ModuleFolder(path=folder, form=form, tensors=tensors_in(tensors, values), digest=digest.hexdigest())


def _contents(path: Path, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > most:
            raise UsageError(f"{path} has {spell_bytes(size)}, and at most {spell_bytes(most)} are read of it.")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def _object(path: Path, declared: bytes) -> dict[str, Any]:
    try:
        found = json.loads(declared)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} cannot be read as a JSON object.")
    return found


def _form(declared: dict[str, Any], path: Path) -> ModuleForm:
    try:
        return msgspec.convert(declared, ModuleForm)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no form of a module, such as {EXAMPLE}: {error}.") from None


def _nothing_in(folder: Path) -> str:
    wanted = f"{saelens.CONFIGURATION} with {saelens.WEIGHTS} (SAELens), nor {DECLARED} with {TENSORS}"
    pickles = sorted(one.name for one in folder.iterdir() if one.suffix in PICKLES)
    if pickles:
        return (
            f"{folder} has neither {wanted}. {pickles[0]} is a pickle, which is code and never read: save its tensors "
            "by safetensors."
        )
    return f"{folder} has neither {wanted}."
