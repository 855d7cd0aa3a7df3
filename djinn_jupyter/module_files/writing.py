"""Writes a module's folder, whole or not at all, and the bytes of a safetensors file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.wire.arrays import Array

NAMES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
EIGHT: Final = 8


def require_free(folder: Path) -> None:
    """Raise UsageError where a folder has files already, or is none."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror or error}.") from None
    if taken:
        raise UsageError(f"{folder} has something already: name another folder, or delete that one.")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files beside the folder and move them to its place together. Raises StorageFailed, and leaves nothing
    then."""
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


def safetensors_bytes(tensors: Mapping[str, Array]) -> bytes:
    """Return the file of some tensors: the same values are the same bytes."""
    entries, values, begin = {}, [], 0
    for name, array in sorted(tensors.items()):
        place = [begin, begin + array.nbytes]
        entries[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        values.append(bytes(array.data))
        begin += array.nbytes
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % EIGHT)
    return b"".join([len(head).to_bytes(EIGHT, "little"), head, *values])
