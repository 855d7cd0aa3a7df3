"""A shard in memory (the values of some prompts, added prompt by prompt, each once), its file, and its destination."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from djinn_jupyter import files, tensor_files
from djinn_jupyter.engine.store.records import raw_pieces
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.files import Abandoned, open_plain, require_writable
from djinn_jupyter.methods.datasets.request import STAYS, shard_name
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.arrays import Array

TensorsByName = Mapping[str, Tensor]


class Shard:
    """`rows` is the number of rows of each prompt; None where it has one for each token."""

    def __init__(self, prompts: tuple[tuple[int, ...], ...], rows: int | None) -> None:
        self.prompts, self.rows = prompts, rows
        self.tensors: dict[str, Tensor] = {}
        counts = [len(tokens) if rows is None else rows for tokens in prompts]
        self._starts = [0, *accumulate(counts)]
        self._missing = set(range(len(prompts)))

    def put(self, index: int, values: TensorsByName) -> None:
        """Add the values of a prompt, [rows, ...] by site. Raises RuntimeError where it has them already."""
        if index not in self._missing:
            raise RuntimeError(f"prompt {index} of the shard was computed twice")
        for name, value in values.items():
            if name not in self.tensors:
                self.tensors[name] = torch.empty((self._starts[-1], *value.shape[1:]), dtype=value.dtype)
            self.tensors[name][self._starts[index] : self._starts[index + 1]] = value
        self._missing.remove(index)

    def put_many(self, indices: Sequence[int], values: TensorsByName) -> None:
        """Add the values of several prompts, [rows of all of them, ...] by site."""
        counts = [self._starts[index + 1] - self._starts[index] for index in indices]
        parts = {name: value.split(counts) for name, value in values.items()}
        for at, index in enumerate(indices):
            self.put(index, {name: part[at] for name, part in parts.items()})

    def values_of(self, index: int) -> TensorsByName:
        """Return the values of a prompt, as added."""
        return {name: whole[self._starts[index] : self._starts[index + 1]] for name, whole in self.tensors.items()}

    def bytes_for(self, values: TensorsByName) -> int:
        """Return the bytes of the whole shard, given the values of one of its prompts."""
        return sum(value[0].nbytes * self._starts[-1] for value in values.values())

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors of the file: a site's values by its name, tokens and the beginning of each prompt. Raises
        RuntimeError where a prompt is missing."""
        if self._missing:
            raise RuntimeError(f"prompt {min(self._missing)} of the shard was not computed")
        return {**tokens_of(self.prompts), **{name: self._shaped(tensor) for name, tensor in self.tensors.items()}}

    def _shaped(self, tensor: Tensor) -> Tensor:
        if self.rows in (None, 1):
            return tensor
        return tensor.reshape(len(self.prompts), self.rows, *tensor.shape[1:])


def tokens_of(prompts: tuple[tuple[int, ...], ...]) -> dict[str, Tensor]:
    """Return the prompts as two tensors: all tokens in a row, and where each prompt begins and the last one ends."""
    flat = [token for tokens in prompts for token in tokens]
    starts = [0, *accumulate(len(tokens) for tokens in prompts)]
    return {"tokens": torch.tensor(flat, dtype=torch.int64), "starts": torch.tensor(starts, dtype=torch.int64)}


# Shards on the disk, in the safetensors format: written under another name, flushed, then renamed. The same values give
# the same bytes: names are sorted, and no time is stored. The note has a digest of each tensor (`files`).

NOTE: Final = "djinn"  # the only entry of the metadata
ANOTHER: Final = "Choose another folder, or delete that one."

Note = dict[str, Any]


def shard_path(folder: Path, shard: int) -> Path:
    return folder / shard_name(shard)


def write(path: Path, tensors: Mapping[str, Tensor], note: Note, abandoned: threading.Event) -> int:
    """Write a shard and return its bytes, once they and its name are on the disk. StorageFailed leaves nothing
    behind."""
    with _sentence(f"{path} could not be written"):
        with files.written_alone(path) as (file, _):
            write_into(file, tensors, note, abandoned)
        return path.stat().st_size


def write_into(file: BinaryIO, tensors: Mapping[str, Tensor], note: Note, abandoned: threading.Event) -> None:
    """Write the bytes of a shard. Raises Abandoned once no request waits for them any more."""
    described = {name: (_dtype(one), tuple(one.shape), one.nbytes) for name, one in sorted(tensors.items())}
    digests = {
        name: files.of_tensor(tensor_files.NAMES[dtype], shape, raw_pieces(tensors[name]))
        for name, (dtype, shape, _) in described.items()
    }
    whole = {**note, files.WRITTEN: files.written(note, digests)}
    file.write(tensor_files.head_of(described, {NOTE: json.dumps(whole, sort_keys=True)}))
    for name in described:
        for piece in raw_pieces(tensors[name]):
            if abandoned.is_set():
                raise Abandoned
            file.write(piece)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def size_if_there(path: Path, tensors: Mapping[str, Tensor], note: Note) -> int | None:
    """Return the bytes of an existing shard, None without one. Raises UsageError unless it has this note and these
    tensors, and StorageFailed where it is unreadable or incomplete."""
    with _sentence(f"{path} could not be read"):
        try:
            file = open_plain(path)
        except FileNotFoundError:
            return None
        with file:
            return _size_of_same(path, file, tensors, note)


def _size_of_same(path: Path, file: BinaryIO, tensors: Mapping[str, Tensor], note: Note) -> int:
    try:
        head = tensor_files.read_head(file)
        same = all(_is(file, head, name, tensor) for name, tensor in tensors.items())
        different, end = first_difference(json.loads(head.metadata[NOTE]), note), head.end
    except tensor_files.FAULTS:
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
    """Return in words the first different entry of an existing shard's note; None where all are equal."""
    name = next((name for name in note if there.get(name) != note[name]), None)
    return None if name is None else f"{name}: {_short(there.get(name))} there, {_short(note[name])} here"


def _is(file: BinaryIO, head: tensor_files.TensorHead, name: str, tensor: Tensor) -> bool:
    begin, end = head.entries[name]["data_offsets"]
    file.seek(head.begin + begin)
    return file.read(end - begin) == b"".join(bytes(piece) for piece in raw_pieces(tensor))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sentence(what: str) -> AbstractContextManager[None]:
    return files.told_of_disk(what, STAYS, (OSError, ValueError))  # a ValueError for a name with a null


# The two destinations of a shard: a folder of this machine, or the client that asked, which writes it on its own. Knows
# no values. A client names no path here: it sends the note of a shard that it has already, and the shard's bytes lie in
# memory until it has them.

MOST_HANDED_OVER: Final = 2**30  # bytes of the values of a shard


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShard:
    """A complete shard: its `size` in bytes, None where the client has it already, and either its file here or its
    content for the client."""

    size: int | None
    path: Path | None = None
    content: Array | None = None


@dataclass(frozen=True, slots=True)
class InFolder:
    """A file of this machine."""

    path: Path

    def found(self, tokens: TensorsByName, note: Note) -> StoredShard | None:
        """Return the shard if it exists. Raises UsageError where another exists, StorageFailed."""
        size = size_if_there(self.path, tokens, note)
        return None if size is None else StoredShard(size=size, path=self.path)

    def check(self, tokens: TensorsByName, note: Note) -> None:
        """Raise what `found` and `put` would, as far as that is known before. Writes nothing."""
        self.found(tokens, note)
        with _sentence(f"{self.path} could not be written"):
            require_writable(self.path)

    def bytes_in_memory(self, values: int) -> int:
        """Return the memory of a shard with so many bytes of values here. Raises UsageError where that is too much."""
        return values

    def put(self, tensors: TensorsByName, note: Note, abandoned: threading.Event) -> StoredShard:
        """Store the shard. Raises StorageFailed, leaving nothing behind."""
        return StoredShard(size=write(self.path, tensors, note, abandoned), path=self.path)


@dataclass(frozen=True, slots=True)
class WithClient:
    """The client that asked. `there` is the note of the shard called `name` that it has already; it has compared that
    shard's size and prompts itself."""

    name: str
    there: str | None

    def found(self, tokens: TensorsByName, note: Note) -> StoredShard | None:
        if self.there is None:
            return None
        try:
            different = first_difference(json.loads(self.there), note)
        except tensor_files.FAULTS:
            raise UsageError(f"{self.name} is no shard of a collection; choose another folder.") from None
        if different is not None:
            raise UsageError(f"{self.name} is of another collection ({different}). {ANOTHER}")
        return StoredShard(size=None)

    def check(self, tokens: TensorsByName, note: Note) -> None:
        self.found(tokens, note)

    def bytes_in_memory(self, values: int) -> int:
        """Return the bytes of the values, and as many for the file."""
        if values > MOST_HANDED_OVER:
            raise UsageError(
                f"The values of this shard are {spell_bytes(values)}, more than the {spell_bytes(MOST_HANDED_OVER)} "
                "that are sent to another machine at once: have fewer prompts in each, by shard_prompts."
            )
        return 2 * values

    def put(self, tensors: TensorsByName, note: Note, abandoned: threading.Event) -> StoredShard:
        file = BytesIO()
        write_into(file, tensors, note, abandoned)
        content = file.getbuffer()
        return StoredShard(
            size=content.nbytes, content=Array(dtype="uint8", shape=(content.nbytes,), data=content.toreadonly())
        )


Destination = InFolder | WithClient
