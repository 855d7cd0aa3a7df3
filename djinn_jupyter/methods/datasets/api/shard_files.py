"""The file of a shard, read where it lies. Its head is checked against its note and its size when it is opened, so that
a damaged or foreign one is refused by name before a value of it is used. Each tensor is checked when it is first read.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import msgspec
from msgspec import Meta

from djinn_jupyter import former_files, shard_digests
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.plain_files import open_plain
from djinn_jupyter.wire.circumstances import Circumstances

if TYPE_CHECKING:
    import numpy as np

DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16", "I64": "<i8"}
ITEM_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
LENGTH_BYTES: Final = 8
MOST_HEAD: Final = 2**30
_PIECE: Final = 2**20
TOKENS: Final = "tokens"
STARTS: Final = "starts"
Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Model(msgspec.Struct):
    name: str


class _Computed(msgspec.Struct):
    mode: str
    largest_difference: float | None
    notes: tuple[str, ...]


class _Written(msgspec.Struct):
    """The digests; without those of the `tensors` these are not compared."""

    tensors: dict[str, str] | None
    note: str


class _Note(msgspec.Struct):
    """The entries of a note that are read; it has more."""

    shard: Count
    first: Count
    prompts: Count
    last: bool
    sites: tuple[str, ...]
    positions: tuple[int, ...] | None
    dtype: str | None
    mode: str
    seed: Count
    model: _Model
    computed: _Computed
    written: _Written


class _Entry(msgspec.Struct):
    dtype: Literal["F64", "F32", "F16", "BF16", "I64"]
    shape: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
    data_offsets: tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file in the safetensors format: its tensors are mapped when they are asked for. `checked` are the names of
    those whose bytes were compared with their `digests`, which files may lack."""

    path: Path
    note: dict[str, Any]
    entries: dict[str, Any]
    begin: int
    digests: dict[str, str] | None
    checked: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def at(cls, path: Path) -> ShardFile:
        """Read the head of a shard. Raises StorageFailed where it cannot be read, is none, or is not whole."""
        try:
            with open_plain(path) as file:
                entries, note = _head(file)
                begin, size = file.tell(), os.fstat(file.fileno()).st_size
            written = former_files.digests_in(note)
            wanted = begin + _checked_end({**note, shard_digests.WRITTEN: written}, entries)
        except OSError as error:
            raise StorageFailed(f"{path} could not be read: {error.strerror or error}.") from None
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, MemoryError, RecursionError):
            raise StorageFailed(f"{path} is no shard of a collection.") from None
        if size != wanted:
            raise StorageFailed(f"{path} has {size} bytes and should have {wanted}; delete it and collect again.")
        if written[shard_digests.NOTE] != shard_digests.of_note(note):
            raise _damaged(path)
        return cls(path=path, note=note, entries=entries, begin=begin, digests=written["tensors"])

    @property
    def made(self) -> Circumstances:
        """The circumstances that its values follow from. StorageFailed where it does not say them as Djinn does."""
        try:
            return msgspec.convert(self.note["computed"].get("made"), Circumstances)
        except msgspec.ValidationError as error:
            raise StorageFailed(f"{self.path} is not as Djinn wrote it: {error}.") from None

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values of a tensor, mapped. Raises StorageFailed where they are not those that were written."""
        import numpy as np

        self._require_as_written(name)
        entry = self.entries[name]
        return np.memmap(
            self.path,
            dtype=dtype_of(entry["dtype"]),
            mode="r",
            offset=self.begin + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )

    def _require_as_written(self, name: str) -> None:
        """Raise StorageFailed where a tensor's bytes have another digest than its note says."""
        if name in self.checked or self.digests is None:
            return
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        try:
            with open_plain(self.path) as file:
                file.seek(self.begin + begin)
                pieces = (file.read(min(_PIECE, end - at)) for at in range(begin, end, _PIECE))
                found = shard_digests.of_tensor(entry["dtype"], entry["shape"], pieces)
        except OSError as error:
            raise StorageFailed(f"{self.path} could not be read: {error.strerror or error}.") from None
        if found != self.digests.get(name):
            raise _damaged(self.path)
        self.checked.add(name)


def _damaged(path: Path) -> StorageFailed:
    return StorageFailed(f"{path} is damaged: its bytes are not those that were written; delete it and collect again.")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of an entry."""
    import numpy as np

    if name == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(DTYPES[name])


def _head(file: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of a shard's tensors, and its note. Raises ValueError and others where it is none."""
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if length > MOST_HEAD:
        raise ValueError
    entries = json.loads(file.read(length))
    return entries, json.loads(entries.pop("__metadata__")["djinn"])


def _checked_end(note: dict[str, Any], entries: dict[str, Any]) -> int:
    """Return where the last value ends, behind the head. Raises ValueError where note and tensors do not fit."""
    said, found = msgspec.convert(note, _Note), msgspec.convert(entries, dict[str, _Entry])
    if not all(map(_fits, found.values())):
        raise ValueError
    tokens, starts = found[TOKENS].shape, found[STARTS].shape
    rows = said.prompts if said.positions is not None else math.prod(tokens)
    if starts != (said.prompts + 1,) or any(found[site].shape[0] != rows for site in said.sites):
        raise ValueError
    return max(entry.data_offsets[1] for entry in found.values())


def _fits(entry: _Entry) -> bool:
    begin, end = entry.data_offsets
    return end - begin == math.prod(entry.shape) * ITEM_BYTES[entry.dtype]
