"""The files of a module's folder, read whole: contents up to a size, a declaration in JSON. Nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors

from djinn_jupyter import tensor_files
from djinn_jupyter.errors import MalformedMessage, StorageFailed, UsageError
from djinn_jupyter.files import open_plain
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import ModuleForm

MOST_DECLARATION: Final = 2**20
MOST_BYTES: Final = 2**32  # the limit of one message
PICKLES: Final = (".pt", ".pth", ".bin", ".pkl")


def contents_of(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Raises UsageError where it is larger, or unreadable."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise UsageError(f"{path} has {spell_bytes(size)}, and at most {spell_bytes(most)} are read of it.")
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def object_in(path: Path, declared: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises UsageError."""
    try:
        found = json.loads(declared)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} cannot be read as a JSON object.")
    return found


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


def read_pair(declaration: Path, weights: Path) -> tuple[dict[str, Any], dict[str, Array], str]:
    """Return the object in a declaration, the tensors beside it, and the digest of both files' bytes."""
    declared, values = contents_of(declaration, MOST_DECLARATION), contents_of(weights, MOST_BYTES)
    digest = hashlib.blake2b(declared, digest_size=16)
    digest.update(values)
    return object_in(declaration, declared), tensors_in(weights, values), digest.hexdigest()


def pickle_among(folder: Path) -> str | None:
    """Return a sentence about the first pickle in a folder; None where there is none."""
    pickles = sorted(one.name for one in folder.iterdir() if one.suffix in PICKLES)
    if not pickles:
        return None
    return f"{pickles[0]} is a pickle, which is code and never read: save its tensors by safetensors."


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The names of all fields. The reader of a format reads and checks `computed` ones, and `harmless` ones change no
    number. `refused` maps each other field to the value at which it changes nothing, and the advice for any other
    value."""

    computed: frozenset[str]
    harmless: frozenset[str]
    refused: Mapping[str, tuple[object, str]]

    def __contains__(self, name: str) -> bool:
        return name in self.computed or name in self.harmless or name in self.refused

    def unheard(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that could change a number and are not computed here, including unknown ones."""
        heard = self.computed | self.harmless
        return {name: value for name, value in said.items() if name not in heard and not self.is_unset(name, value)}

    def is_unset(self, name: str, value: object) -> bool:
        """Return whether a field has no effect at a value: null, false, empty, or the default of its class."""
        default = self.refused.get(name, (None, ""))[0]
        empty = value is None or value is False or (isinstance(value, str | list | tuple | dict) and not value)
        return empty or (isinstance(value, bool) == isinstance(default, bool) and value == default)

    def require_heard(self, said: Mapping[str, Any], where: str) -> None:
        """Raise UsageError, with the name of the field, where a declaration has one that is not computed here."""
        for name, value in self.unheard(said).items():
            advice = self.refused.get(name, (None, ""))[1]
            raise UsageError(f"{where} has {name} {short(value)}, which is not computed here{advice and '; '}{advice}.")

    def unknown(self, said: Iterable[str]) -> list[str]:
        """Return the fields that are in no table."""
        return [name for name in said if name not in self]


def short(value: object) -> str:
    """Return a value of a file in the form of a message."""
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."


# Checks of numbers in a file's tensors that decide whether a module is computed here.

CLOSE: Final = 1.001e-5  # of `torch.allclose`, by which SAELens compares


def all_ones(array: Array) -> bool:
    """Return whether every number of a floating array is 1."""
    return bool((abs(_numbers(array) - 1.0) <= CLOSE).all())


def any_negative(array: Array) -> bool:
    """Return whether a number of a floating array is below 0."""
    return bool((_numbers(array) < 0).any())


def _numbers(array: Array) -> Any:
    if array.dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(array.data, dtype="<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))


# Match regular expressions of files in a process of their own, with a time limit: one can take years.

MOST_SECONDS: Final = 20.0
PROGRAM: Final = """\
import json, re, sys
patterns, names = json.load(sys.stdin)
json.dump({one: [name for name in names if re.fullmatch(one, name)] for one in patterns}, sys.stdout)
"""


def matched(patterns: Sequence[str], names: Iterable[str], where: str) -> Mapping[str, list[str]]:
    """Return the names that each pattern matches as a whole. Raises UsageError where one is an invalid regular
    expression, or takes longer than MOST_SECONDS. Without a pattern no process is started."""
    if not patterns:
        return {}
    asked = json.dumps([list(patterns), list(names)])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM], input=asked, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{where}: it takes more than {MOST_SECONDS:g} seconds to match the pattern.") from None
    if done.returncode != 0:
        raise UsageError(f"{where}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'it cannot be matched'}.")
    found: Mapping[str, list[str]] = json.loads(done.stdout)
    return found


# Read a safetensors file by the format's own library, which refuses crafted headers. Needs no torch. The file is read
# whole: a mapped file that is truncated meanwhile ends the process.

ENTRY: Final = FieldTable(computed=frozenset({"data_offsets", "dtype", "shape"}), harmless=frozenset(), refused={})
FLOATS: Final = ("F32", "F16", "BF16", "F64")


def tensors_in(path: Path, contents: bytes) -> dict[str, Array]:
    """Return the tensors of a file by name, in its order. Raises UsageError for an invalid or incomplete file, or a
    tensor that is not computed here."""
    try:
        found = dict(safetensors.deserialize(contents))
    except safetensors.SafetensorError as error:
        why = str(error).partition(": ")[2]
        raise UsageError(f"{path} is no safetensors file, or is cut short ({why}); copy it again.") from None
    entries = tensor_files.read_head(BytesIO(contents)).entries
    for name, entry in entries.items():
        ENTRY.require_heard(entry, f"{path}: {name}")
    return {name: _array(path, name, found[name]) for name in entries}


def _array(path: Path, name: str, tensor: dict[str, Any]) -> Array:
    if tensor["dtype"] not in FLOATS:
        kind = tensor["dtype"]
        raise UsageError(f"{name} in {path} is of dtype {kind}; a module's tensors are of {', '.join(FLOATS)}.")
    try:
        return Array(dtype=tensor_files.DTYPES[tensor["dtype"]], shape=tuple(tensor["shape"]), data=tensor["data"])
    except MalformedMessage as error:
        raise UsageError(f"{name} in {path} cannot be read: {error}") from None


def require_free(folder: Path) -> None:
    """Raise UsageError where a folder is not empty, or is not a folder."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror or error}.") from None
    if taken:
        raise UsageError(f"{folder} has something already: name another folder, or delete that one.")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files beside the folder and move them to its place together. Raises StorageFailed, leaving nothing."""
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        aside.chmod(0o755)
        for name, contents in files.items():
            (aside / name).write_bytes(contents)
        aside.replace(folder)
    except OSError as error:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        raise StorageFailed(f"{folder} could not be written: {error.strerror or error}.") from None
