"""A layer's arguments as a message: tensors by number, the cache as a word, plain values as they are.

A tensor that the ranks know already is not sent again: masks and rotary tables are the same for all layers of a pass,
and the hidden state that a layer returns is the next one's, on every rank with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor
from transformers import Cache

from djinn_jupyter.engine.parallel.group import form_of
from djinn_jupyter.engine.parallel.messages import TensorForm
from djinn_jupyter.errors import ModelRefused

TENSOR: Final = 0
CACHE: Final = 1
PLAIN: Final = 2
SEQUENCE: Final = 3
MAPPING: Final = 4
Packed = tuple[int, Any]


class KnownTensors:
    """The tensors of the leader's last call of a layer, and what that returned, which the other ranks know by number.
    Held here, so that no other tensor gets their identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Tensor]] = {}
        self._used: dict[int, tuple[int, Tensor]] = {}
        self._sent: list[tuple[int, Tensor]] = []
        self._last = 0

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Packed, list[tuple[TensorForm, Tensor]]]:
        """Return the arguments of a call, and the tensors among them that have to be sent."""
        self._used, self._sent = {}, []
        packed = self._packed((args, kwargs))
        return packed, [(form_of(number, tensor), tensor) for number, tensor in self._sent]

    def were_sent(self) -> None:
        """Note that all ranks have those tensors now."""
        self._known = self._used

    def number(self) -> int:
        """Return a number for a tensor that is still to be made."""
        self._last += 1
        return self._last

    def know(self, number: int, tensor: Tensor) -> None:
        """Note that all ranks have made this tensor."""
        self._known[id(tensor)] = number, tensor

    def _packed(self, value: Any) -> Packed:
        if isinstance(value, Tensor):
            return TENSOR, self._numbered(value)
        if isinstance(value, Cache):
            return CACHE, None
        if value is None or isinstance(value, bool | int | float | str):
            return PLAIN, value
        if isinstance(value, tuple | list):
            return SEQUENCE, [self._packed(part) for part in value]
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return MAPPING, {name: self._packed(part) for name, part in value.items()}
        raise ModelRefused(
            f"Its layers are given a {type(value).__name__}, which cannot be told to other ranks: load it without "
            "--tensor-parallel."
        )

    def _numbered(self, tensor: Tensor) -> int:
        found = self._used.get(id(tensor)) or self._known.get(id(tensor))
        if found is None:
            found = self.number(), tensor
            self._sent.append(found)
        self._used[id(tensor)] = found
        return found[0]


def unpack(packed: Any, tensors: Mapping[int, Tensor], cache: Cache) -> Any:
    """Return what was packed, with a rank's own tensors and cache."""
    kind, value = packed
    if kind == TENSOR:
        return tensors[value]
    if kind == CACHE:
        return cache
    if kind == SEQUENCE:
        return tuple(unpack(part, tensors, cache) for part in value)
    return {name: unpack(part, tensors, cache) for name, part in value.items()} if kind == MAPPING else value


def numbers_in(packed: Any) -> set[int]:
    """Return the numbers of the tensors in what was packed."""
    kind, value = packed
    if kind == TENSOR:
        return {value}
    parts = value if kind == SEQUENCE else value.values() if kind == MAPPING else ()
    return set().union(*map(numbers_in, parts))
