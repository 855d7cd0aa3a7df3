"""Values of a session without a fixed shape (what layers pass to each other, recurrent states) as tagged structs, and
back.

Supports tensors, numbers, text, tuples, lists, mappings, dtypes and devices. Refuses anything else: a value that cannot
be stored completely is not stored at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.wire.base import Frozen

DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class KeptBase(Frozen, tag_field="is", gc=False):
    """A value inside a session's image. There are many (thousands of states in a long line), without reference cycles:
    the garbage collector skips them, which makes reading them six times as fast."""


class KeptTensor(KeptBase, frozen=True, tag="tensor"):
    value: Tensor


class KeptStored(KeptBase, frozen=True, tag="stored"):
    """A tensor whose bytes lie in the disk tier's file: a view of storage number `storage`."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class KeptPlain(KeptBase, frozen=True, tag="plain"):
    value: bool | int | float | str | None


class KeptTuple(KeptBase, frozen=True, tag="tuple"):
    items: tuple[Kept, ...]


class KeptList(KeptBase, frozen=True, tag="list"):
    items: tuple[Kept, ...]


class KeptMapping(KeptBase, frozen=True, tag="mapping"):
    entries: tuple[tuple[Kept, Kept], ...]


class KeptDtype(KeptBase, frozen=True, tag="dtype"):
    name: str


class KeptDevice(KeptBase, frozen=True, tag="device"):
    """Stands for the device of the engine that reads it."""


Kept = KeptTensor | KeptStored | KeptPlain | KeptTuple | KeptList | KeptMapping | KeptDtype | KeptDevice


def by_value(tensor: Tensor) -> Kept:
    return KeptTensor(value=tensor)


def keep(value: Any, where: str, tensor: Callable[[Tensor], Kept] = by_value) -> Kept:
    """Return `value` as structs, its tensors converted by `tensor`. CheckpointRefused names an unsupported kind;
    `where` says what the value is part of."""
    kind = type(value)
    if kind is Tensor:
        return tensor(value)
    if value is None or kind in (bool, int, float, str):
        return KeptPlain(value=value)
    if kind is tuple:
        return KeptTuple(items=tuple(keep(item, where, tensor) for item in value))
    if kind is list:
        return KeptList(items=tuple(keep(item, where, tensor) for item in value))
    if kind is dict:
        return KeptMapping(entries=tuple((keep(k, where), keep(item, where, tensor)) for k, item in value.items()))
    if kind is torch.dtype:
        return KeptDtype(name=str(value).removeprefix("torch."))
    if kind is torch.device:
        return KeptDevice()
    raise CheckpointRefused(
        f"{where} holds a {kind.__module__}.{kind.__qualname__}, which cannot be kept; this session stays in memory."
    )


def nowhere(stored: KeptStored) -> Tensor:
    raise CheckpointRefused("It names values in a file that does not belong to it.")


def give_back(kept: Kept, device: torch.device, fetch: Callable[[KeptStored], Tensor] = nowhere) -> Any:
    """Return the original value of `keep`; `fetch` makes the tensors stored elsewhere. Raises CheckpointRefused for a
    dtype that torch does not have."""
    match kept:
        case KeptStored():
            return fetch(kept)
        case KeptTensor(value=tensor):
            return to_home(tensor, device)
        case KeptPlain():
            return kept.value
        case KeptTuple(items=items):
            return tuple(give_back(item, device, fetch) for item in items)
        case KeptList(items=items):
            return [give_back(item, device, fetch) for item in items]
        case KeptMapping(entries=entries):
            return {give_back(key, device): give_back(item, device, fetch) for key, item in entries}
        case KeptDtype(name=name):
            return dtype_of(name)
        case KeptDevice():
            return device


def dtype_of(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise CheckpointRefused(f"It holds values of dtype {name}, which this torch does not have.")
    return DTYPES[name]
