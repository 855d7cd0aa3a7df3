"""The file of a grid: the safetensors format, so that other programs read its values, with the sweeps' replies beside
them as JSON. Written whole or not at all; checked when read. Knows nothing of grids but their replies.

    [length of the head, 8 bytes] [head, JSON] [values, float64] [arrays of edits]

The head has the tensors `values` (with the axes of the grid), `edit 0`, ... and, as `__metadata__`, two texts: `djinn`,
in which an array is `{tensor, part}`, and `digest`, that of this text and of all bytes behind the head.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import StorageFailed, UsageError, WireError
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from djinn_jupyter.wire.replies import Swept
from djinn_jupyter.wire.texts import in_quotes

FORMAT: Final = 1
VALUES: Final = "values"
LONGEST_HEAD: Final = 2**30  # bytes
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
Head = dict[str, Any]


class KeptGrid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file; the fields are those of a Grid."""

    format: int = FORMAT
    version: str = __version__
    paired: bool
    several: bool
    interrupted: bool
    missing: int
    replies: tuple[Swept, ...]


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array that is one `part` of this shape of a tensor, counted along its bytes."""

    tensor: str
    shape: tuple[int, ...]
    part: int = 0


def encoded(grid: KeptGrid, shape: Sequence[int]) -> bytes:
    """Return the bytes of a file, in which the values of all replies are one tensor of this shape."""
    parts = [one.values for reply in grid.replies for one in reply.measured]
    numbers = {id(array): number for number, array in enumerate(parts)}
    edits: dict[Array, str] = {}

    def place(value: Any) -> dict[str, Any]:
        if not isinstance(value, Array):
            raise NotImplementedError(f"{type(value)} is in no file")
        if id(value) in numbers:
            return {"tensor": VALUES, "shape": value.shape, "part": numbers[id(value)]}
        return {"tensor": edits.setdefault(value, f"edit {len(edits)}"), "shape": value.shape}

    text = json.dumps(msgspec.to_builtins(grid, enc_hook=place))
    tensors = {VALUES: (NAMES["float64"], list(shape), b"".join(bytes(array.data) for array in parts))}
    tensors |= {name: (NAMES[array.dtype], list(array.shape), bytes(array.data)) for array, name in edits.items()}
    body = b"".join(data for _, _, data in tensors.values())
    head: dict[str, Any] = {"__metadata__": {"djinn": text, "digest": _digest(text, body)}}
    end = 0
    for name, (dtype, axes, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": axes, "data_offsets": [end, end := end + len(data)]}
    written = json.dumps(head).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + body


def decoded(data: bytes, name: str) -> KeptGrid:
    """Return the grid in the bytes of the file `name`. Raises UsageError, which says why there is none."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= LONGEST_HEAD or data[8:9] != b"{":
        raise UsageError(f"{name} is no grid of a sweep.")
    if len(data) < 8 + length:
        raise UsageError(f"{name} is truncated: its end is missing.")
    body = memoryview(data)[8 + length :]
    try:
        head = json.loads(data[8 : 8 + length])
        text, digest = head["__metadata__"]["djinn"], head["__metadata__"]["digest"]
        told = json.loads(text)
        number = told["format"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UsageError(f"{name} is no grid of a sweep.") from None
    if number != FORMAT:
        raise UsageError(
            f"{name} has format {number!r}, and Djinn {__version__} reads format {FORMAT}: it was written by another "
            f"version, {told.get('version')!r}."
        )
    try:
        if len(body) < max(entry["data_offsets"][1] for one, entry in head.items() if one != "__metadata__"):
            raise UsageError(f"{name} is truncated: its end is missing.")
        if digest != _digest(text, body):
            raise UsageError(f"{name} is damaged: its bytes are not those that were written.")
        grid = msgspec.convert(told, KeptGrid, dec_hook=_Arrays(head, body))
        _check(grid)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, WireError) as error:
        raise UsageError(f"{name} is no grid that Djinn {__version__} wrote: {_said(error)}.") from None
    return grid


def _check(grid: KeptGrid) -> None:
    """Raise ValueError where the parts of a grid do not fit each other."""
    if not grid.replies or not all(reply.measured for reply in grid.replies):
        raise ValueError("it has no values")
    shapes = {one.values.shape for reply in grid.replies for one in reply.measured}
    metrics = {tuple(one.metric for one in reply.measured) for reply in grid.replies}
    fit = all(len(one.over) == len(one.places) and tuple(map(len, one.places)) in shapes for one in grid.replies)
    alone = (grid.paired or len(grid.replies) == 1) and (grid.several or len(grid.replies[0].measured) == 1)
    if not (fit and alone and len(shapes) == len(metrics) == 1):
        raise ValueError("its values and its axes do not fit")
    if {one.values.dtype for reply in grid.replies for one in reply.measured} != {"float64"}:
        raise ValueError("its values are not float64")
    if not all(_fits_confirmed(reply) for reply in grid.replies):
        raise ValueError("its confirmed cells are none of its cells")
    if not all(_has_texts(reply) for reply in grid.replies):
        raise ValueError("its positions have no tokens")


def _fits_confirmed(reply: Swept) -> bool:
    """Return whether the cells confirmed are cells of the reply, each with a change for each metric."""
    kept, count = reply.confirmed, math.prod(map(len, reply.places))
    if kept is None:
        return True
    fits = len(kept.cells) == len(kept.changes) and all(len(row) == len(reply.measured) for row in kept.changes)
    return fits and all(0 <= cell < count for cell in kept.cells)


def _has_texts(reply: Swept) -> bool:
    """Return whether each position has a token's text; an unfinished sweep has no texts at all."""
    along = [
        place for axis, places in zip(reply.over, reply.places, strict=True) if axis == "position" for place in places
    ]
    return not reply.texts or all(isinstance(at, int) and 0 <= at < len(reply.texts) for at in along)


def _said(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")


class _Arrays:
    """Makes the arrays of the replies from the tensors in a file."""

    def __init__(self, head: Head, body: memoryview) -> None:
        self._head, self._body = head, body

    def __call__(self, kind: type, value: Any) -> Array:
        if kind is not Array:
            raise NotImplementedError(f"{kind} is in no file")
        place = msgspec.convert(value, _Place)
        entry = self._head[place.tensor]
        dtype, (begin, end) = DTYPES[entry["dtype"]], entry["data_offsets"]
        size = math.prod(place.shape) * ITEM_BYTES[dtype]
        first = begin + place.part * size
        return Array(dtype=dtype, shape=place.shape, data=self._body[max(first, 0) : min(first + size, end)])


def _digest(text: str, body: bytes | memoryview) -> str:
    digest = hashlib.sha256(text.encode())
    digest.update(body)
    return digest.hexdigest()


def put(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file, whole or not at all. Raises UsageError where another content is there and it is not to be replaced,
    StorageFailed where the disk refuses."""
    try:
        there = path.read_bytes() if path.exists() else None
        if there == data:
            return
        if there is not None and not replace:
            raise UsageError(
                f"There is another {in_quotes(path.name)} already; choose another name, or replace it (replace=True)."
            )
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise StorageFailed(f"{path} could not be written: {error.strerror or error}.") from None
