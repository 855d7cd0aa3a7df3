"""The two places that a shard goes to: a folder of this machine, or the client that asked, which writes it where it is.
Knows no values.

A client names no path here: of a shard that it has already it sends the note, and the shard's bytes lie in memory until
it has them.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Protocol

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.engine import shard_file
from djinn_jupyter.methods.datasets.engine.shard import TensorsByName
from djinn_jupyter.wire.arrays import Array

MOST_HANDED_OVER: Final = 2**30  # bytes of the values of a shard


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShard:
    """A shard that is whole: its `size` in bytes, None where the client has it already, and either its file here or its
    content for the client."""

    size: int | None
    path: Path | None = None
    content: Array | None = None


class Destination(Protocol):
    def found(self, tokens: TensorsByName, note: shard_file.Note) -> StoredShard | None:
        """Return the shard where it is there already. Raises UsageError where another is there, StorageFailed."""

    def check(self, tokens: TensorsByName, note: shard_file.Note) -> None:
        """Raise what `found` and `put` would, as far as that is known before. Puts nothing there."""

    def bytes_in_memory(self, values: int) -> int:
        """Return what a shard with so many bytes of values takes here. Raises UsageError where that is too much."""

    def put(self, tensors: TensorsByName, note: shard_file.Note, abandoned: threading.Event) -> StoredShard:
        """Put the shard there. Raises StorageFailed, and leaves nothing behind then."""


@dataclass(frozen=True, slots=True)
class InFolder:
    """A file of this machine."""

    path: Path

    def found(self, tokens: TensorsByName, note: shard_file.Note) -> StoredShard | None:
        size = shard_file.size_if_there(self.path, tokens, note)
        return None if size is None else StoredShard(size=size, path=self.path)

    def check(self, tokens: TensorsByName, note: shard_file.Note) -> None:
        shard_file.require_place(self.path, tokens, note)

    def bytes_in_memory(self, values: int) -> int:
        return values

    def put(self, tensors: TensorsByName, note: shard_file.Note, abandoned: threading.Event) -> StoredShard:
        return StoredShard(size=shard_file.write(self.path, tensors, note, abandoned), path=self.path)


@dataclass(frozen=True, slots=True)
class WithClient:
    """The client that asked. `there` is the note of the shard called `name` that it has already; that shard's size and
    prompts it has compared itself."""

    name: str
    there: str | None

    def found(self, tokens: TensorsByName, note: shard_file.Note) -> StoredShard | None:
        if self.there is None:
            return None
        try:
            different = shard_file.first_difference(json.loads(self.there), note)
        except (AttributeError, ValueError, RecursionError):
            raise UsageError(f"{self.name} is no shard of a collection; choose another folder.") from None
        if different is not None:
            raise UsageError(f"{self.name} is of another collection ({different}). {shard_file.ANOTHER}")
        return StoredShard(size=None)

    def check(self, tokens: TensorsByName, note: shard_file.Note) -> None:
        self.found(tokens, note)

    def bytes_in_memory(self, values: int) -> int:
        """Return the bytes of the values, and once more of the file."""
        if values > MOST_HANDED_OVER:
            raise UsageError(
                f"The values of this shard are {spell_bytes(values)}, more than the {spell_bytes(MOST_HANDED_OVER)} "
                "that are sent to another machine at once: have fewer prompts in each, by shard_prompts."
            )
        return 2 * values

    def put(self, tensors: TensorsByName, note: shard_file.Note, abandoned: threading.Event) -> StoredShard:
        file = BytesIO()
        shard_file.write_into(file, tensors, note, abandoned)
        content = file.getbuffer()
        return StoredShard(
            size=content.nbytes, content=Array(dtype="uint8", shape=(content.nbytes,), data=content.toreadonly())
        )
