"""Reads a safetensors file: a length, a header in JSON, raw values. Trusts nothing in it, and needs no torch.

The format is https://github.com/huggingface/safetensors#format. The file is read whole: one that is mapped into memory
and cut short meanwhile ends the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.module_files.field_table import FieldTable, short
from djinn_jupyter.wire.arrays import ITEM_BYTES, MAX_AXES, Array

LENGTH_BYTES: Final = 8
MOST_HEADER: Final = 10 * 2**20
METADATA: Final = "__metadata__"
ENTRY: Final = FieldTable(computed=frozenset({"data_offsets", "dtype", "shape"}), harmless=frozenset(), refused={})
DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def tensors_in(path: Path, contents: bytes) -> dict[str, Array]:
    """Return the tensors of a file by name, views of its contents. Raises UsageError where it is none, or not whole."""
    whole = memoryview(contents)
    header, begins = _header(path, whole)
    _require_apart(path, header)
    return {
        str(name): _tensor(path, str(name), entry, whole, begins) for name, entry in header.items() if name != METADATA
    }


def _header(path: Path, whole: memoryview) -> tuple[Mapping[str, Any], int]:
    """Return the header, and the place of the first value."""
    length = int.from_bytes(whole[:LENGTH_BYTES], "little")
    if len(whole) < LENGTH_BYTES or length > MOST_HEADER:
        raise UsageError(f"{path} is no safetensors file: it does not begin with the length of its header.")
    if len(whole) < LENGTH_BYTES + length:
        raise _cut_short(path, LENGTH_BYTES + length, len(whole))
    try:
        header = json.loads(bytes(whole[LENGTH_BYTES : LENGTH_BYTES + length]))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UsageError(f"{path} is no safetensors file: its header cannot be read.")
    texts = header.get(METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(one, str) for one in texts.values()):
        raise UsageError(f"{path} contradicts itself: its {METADATA} {short(texts)} is no object of texts.")
    return header, LENGTH_BYTES + length


def _tensor(path: Path, name: str, entry: Any, whole: memoryview, begins: int) -> Array:
    dtype, shape, (start, end) = _entry(path, name, entry)
    if end - start != math.prod(shape) * ITEM_BYTES[dtype]:
        raise UsageError(f"{path} contradicts itself: {name} of shape {list(shape)} has {end - start} bytes there.")
    if begins + end > len(whole):
        raise _cut_short(path, begins + end, len(whole))
    return Array(dtype=dtype, shape=shape, data=whole[begins + start : begins + end])


def _require_apart(path: Path, header: Mapping[str, Any]) -> None:
    """Raise UsageError where two tensors have bytes in common, which no program writes."""
    places = sorted((*_entry(path, name, entry)[2], name) for name, entry in header.items() if name != METADATA)
    for (_, end, name), (start, _, other) in pairwise(places):
        if start < end:
            raise UsageError(f"{path} contradicts itself: {name} and {other} have bytes in common.")


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Return the dtype, the shape and the place of a tensor, as its header says them."""
    found = entry if isinstance(entry, dict) else {}
    ENTRY.require_heard(found, f"{path}: {name}")
    kind, shape, place = found.get("dtype"), _counts(found.get("shape")), _counts(found.get("data_offsets"))
    if isinstance(kind, str) and kind not in DTYPES:
        raise UsageError(f"{name} in {path} is of dtype {kind}; a module's tensors are of {', '.join(DTYPES)}.")
    if not isinstance(kind, str) or shape is None or len(shape) > MAX_AXES or place is None or len(place) != 2:
        raise UsageError(f"{path} contradicts itself: its header does not say the dtype, shape and place of {name}.")
    return DTYPES[kind], shape, (place[0], place[1])


def _counts(value: Any) -> tuple[int, ...] | None:
    """Return a list of whole numbers, none below 0 or beyond 64 bits; None for anything else."""
    found = isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)
    return tuple(value) if found else None


def _cut_short(path: Path, wanted: int, there: int) -> UsageError:
    return UsageError(
        f"{path} is cut short: it should have {spell_bytes(wanted)} and has {spell_bytes(there)}; copy it again."
    )
