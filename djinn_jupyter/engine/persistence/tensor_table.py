"""Encode an image as bytes and numbered arrays, and decode it. The only place where an image's tensors get their
numbers.

In the bytes a tensor is the number of an array, so that a tensor shared by several parts of a session, or by several
images of one file, is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import CheckpointRefused, UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.frozen import Frozen

Struct = TypeVar("Struct")


class ArrayHead(Frozen, frozen=True):
    """Describes an array of a file. `at_home`: it belongs on the engine's device, else on the host."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    at_home: bool


class TensorTable:
    """Numbers tensors, each once. Keeps a reference to every numbered object: Python reuses the id of a freed one.
    `device` is the engine's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numbers: dict[int, int] = {}
        self._held: dict[int, tuple[object, Tensor]] = {}
        self._next = self._before = 0
        self.met: set[int] = set()

    def encode(self, image: msgspec.Struct) -> tuple[bytes, list[tuple[ArrayHead, Tensor]]]:
        """Return the bytes of an image, and the arrays in it that had no number before, on their present devices."""
        self._before = self._next
        self.met = set()
        try:
            body = msgspec.msgpack.encode(image, enc_hook=self._place)
        except BaseException:
            self.take_back()
            raise
        fresh = ((number, self._held[number][1]) for number in range(self._before, self._next))
        return body, [(self._head(number, tensor), tensor) for number, tensor in fresh]

    def forget_unmet(self) -> None:
        """Release the tensors that the last image did not refer to; if they recur, they get new numbers."""
        for number in [number for number in self._held if number not in self.met]:
            owner, _ = self._held.pop(number)
            del self._numbers[id(owner)]

    def take_back(self) -> None:
        """Release the arrays that were new in the last image, because they were not stored after all."""
        for number in [number for number in self._held if number >= self._before]:
            owner, _ = self._held.pop(number)
            del self._numbers[id(owner)]
            self.met.discard(number)

    @property
    def bytes_met(self) -> int:
        """Bytes of the arrays that the last image refers to."""
        return sum(self._held[number][1].nbytes for number in self.met)

    def _head(self, number: int, tensor: Tensor) -> ArrayHead:
        return ArrayHead(
            number=number,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            at_home=tensor.device.type == self._device.type,
        )

    def _place(self, value: Any) -> int:
        if id(value) not in self._numbers:
            tensor = value if isinstance(value, Tensor) else _tensor_of(value)
            self._numbers[id(value)] = self._next
            self._held[self._next] = (value, tensor)
            self._next += 1
        number = self._numbers[id(value)]
        self.met.add(number)
        return number


def decode(body: bytes, kind: type[Struct], arrays: Mapping[int, Tensor]) -> Struct:
    """Return what `TensorTable.encode` encoded. Raises CheckpointRefused where it is not of that kind or names an array
    that is missing."""

    def place(wanted: type, value: Any) -> Any:
        tensor = arrays.get(value) if isinstance(value, int) else None
        if tensor is None:
            raise ValueError("it refers to an array that is not there")
        return tensor if wanted is Tensor else to_array(tensor)

    try:
        return msgspec.msgpack.decode(body, type=kind, dec_hook=place)
    except (msgspec.MsgspecError, UsageError, ValueError, RecursionError, OverflowError) as error:
        said = str(error).rstrip(".")
        raise CheckpointRefused(f"It cannot be read by this version of Djinn: {said}.") from None


def _tensor_of(value: Any) -> Tensor:
    if isinstance(value, Array):
        return to_tensor(value)
    raise CheckpointRefused(f"A {type(value).__name__} cannot be kept.")
