"""The head of a file in the safetensors format, written and read; the library of the format reads models and modules.

    length of the head, 8 bytes | head, JSON, filled up with spaces to 8 bytes | tensors, one after the other

Results and shards need what the library does not do. It writes metadata in another order each time, so the same values
would give other bytes. It takes all tensors at once: a shard would lie in memory twice, and could not be given up
meanwhile. It reads a file by mapping it, which ends the process where the file is cut meanwhile; of bytes in memory it
returns no metadata; and it does not say where a tensor begins, by which numpy maps bfloat16. Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

METADATA: Final = "__metadata__"
LONGEST: Final = 2**30  # bytes of a head
NAMES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
DTYPES: Final = {written: name for name, written in NAMES.items()}
FAULTS: Final = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, MemoryError)
"""The errors of an invalid head and of entries that are not what they should be."""


class CutShort(ValueError):
    """The file ends within its head."""


@dataclass(frozen=True, slots=True)
class TensorHead:
    """The entries of the tensors and the metadata, unchecked; `begin` is the place of the first tensor."""

    entries: dict[str, Any]
    metadata: dict[str, Any]
    begin: int

    @property
    def end(self) -> int:
        """The place where the last tensor ends."""
        return self.begin + int(max(entry["data_offsets"][1] for entry in self.entries.values()))


def head_of(tensors: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the head for tensors of a dtype, a shape and so many bytes, which follow in this order."""
    head: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, shape, nbytes) in tensors.items():
        head[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [end, end := end + nbytes]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_head(file: BinaryIO) -> TensorHead:
    """Read the head at the beginning of a file. Raises CutShort and the other FAULTS."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= LONGEST:
        raise ValueError(length)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError("it begins with no object")
    if len(text) < length:
        raise CutShort
    entries = json.loads(text)
    return TensorHead(entries, entries.pop(METADATA, {}), file.tell())
