"""Shards on the disk, in the safetensors format: written whole under another name, forced, then renamed.

The same values give the same bytes: names are sorted, and nothing says when a file was made. The note has a digest of
each tensor (shard_digests.py).

    length of the header, 8 bytes | header, JSON, filled up with spaces to 8 bytes | the tensors, one after the other
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from djinn_jupyter import shard_digests
from djinn_jupyter.engine.persistence.records import raw_pieces
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.fsync import force, force_names, make_folder
from djinn_jupyter.methods.datasets.request.collecting import shard_name
from djinn_jupyter.plain_files import open_plain
from djinn_jupyter.written_aside import PART, Abandoned, require_writable, written_aside

NOTE: Final = "djinn"  # the only entry of the metadata, since others would be written in any order
MOST_HEADER: Final = 2**24
ANOTHER: Final = "Choose another folder, or delete that one."
NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}

Note = dict[str, Any]


def shard_path(folder: Path, shard: int) -> Path:
    return folder / shard_name(shard)


def write(path: Path, tensors: Mapping[str, Tensor], note: Note, abandoned: threading.Event) -> int:
    """Write a shard and return its bytes, once they and its name are on the disk. Raises StorageFailed, and leaves
    nothing behind then."""
    with _sentence(f"{path} could not be written"):
        make_folder(path.parent)
        for left in path.parent.glob(f".{path.name}.*{PART}"):  # by an engine that was killed
            left.unlink(missing_ok=True)
        with written_aside(path, prefix=f".{path.name}.") as (file, aside):
            write_into(file, tensors, note, abandoned)
            file.flush()
            force(file.fileno())
            aside.replace(path)
        force_names(path.parent)
        return path.stat().st_size


def require_place(path: Path, tensors: Mapping[str, Tensor], note: Note) -> None:
    """Raise StorageFailed where a shard cannot be written here, UsageError where one is there that `size_if_there`
    refuses. Writes nothing."""
    size_if_there(path, tensors, note)
    with _sentence(f"{path} could not be written"):
        require_writable(path)


def write_into(file: BinaryIO, tensors: Mapping[str, Tensor], note: Note, abandoned: threading.Event) -> None:
    """Write the bytes of a shard. Raises Abandoned on the way where no request waits for them any more."""
    digests = {
        name: shard_digests.of_tensor(NAMES[tensor.dtype], tensor.shape, raw_pieces(tensor))
        for name, tensor in tensors.items()
    }
    file.write(_header(tensors, {**note, shard_digests.WRITTEN: shard_digests.written(note, digests)}))
    for name in sorted(tensors):
        for piece in raw_pieces(tensors[name]):
            if abandoned.is_set():
                raise Abandoned
            file.write(piece)


def size_if_there(path: Path, tensors: Mapping[str, Tensor], note: Note) -> int | None:
    """Return the bytes of a shard that is there, None where none is. Raises UsageError unless it has this note and
    these tensors, and StorageFailed where it cannot be read or is not whole."""
    with _sentence(f"{path} could not be read"):
        try:
            file = open_plain(path)
        except FileNotFoundError:
            return None
        with file:
            return _size_of_same(path, file, tensors, note)


def _size_of_same(path: Path, file: BinaryIO, tensors: Mapping[str, Tensor], note: Note) -> int:
    try:
        header = json.loads(file.read(_checked(int.from_bytes(file.read(8), "little"))))
        found, begin = json.loads(header["__metadata__"][NOTE]), file.tell()
        end = begin + max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        same = all(_is(file, begin, header[name], tensor) for name, tensor in tensors.items())
        different = first_difference(found, note)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError):
        raise UsageError(f"{path} is no shard of a collection; choose another folder.") from None
    size = os.fstat(file.fileno()).st_size
    if size != end:
        raise StorageFailed(f"{path} has {size} bytes and should have {end}; delete it and collect again.")
    if different is not None:
        raise UsageError(f"{path} is of another collection ({different}). {ANOTHER}")
    if not same:
        raise UsageError(f"{path} has other prompts than these. {ANOTHER}")
    return size


def first_difference(there: Note, note: Note) -> str | None:
    """Return in words the first entry of a note that a shard which is there has otherwise; None where it has all."""
    name = next((name for name in note if there.get(name) != note[name]), None)
    return None if name is None else f"{name}: {_short(there.get(name))} there, {_short(note[name])} here"


def _header(tensors: Mapping[str, Tensor], note: Note) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {NOTE: json.dumps(note, sort_keys=True)}}
    at = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _is(file: Any, begin: int, entry: Any, tensor: Tensor) -> bool:
    file.seek(begin + entry["data_offsets"][0])
    written = file.read(entry["data_offsets"][1] - entry["data_offsets"][0])
    return bool(written == b"".join(bytes(piece) for piece in raw_pieces(tensor)))


def _checked(length: int) -> int:
    if not 2 <= length <= MOST_HEADER:
        raise ValueError(length)
    return length


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def _sentence(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError for a name with a null
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageFailed(
            f"{what}: {why}. Shards that are whole stay, and collecting again goes on after them."
        ) from None
