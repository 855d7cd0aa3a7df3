"""Arrays as they cross the wire: a dtype name, a shape and raw little-endian bytes. Refuses to compute with them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial

from djinn_jupyter.errors import MalformedMessage

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
MAX_AXES = 8


class Array:
    """`shape` in elements, row-major; `data` holds exactly product(shape) x item size bytes. Never changed.

    A plain class, not a dataclass: msgspec would encode a dataclass itself and copy the bytes into the message head.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, *, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        self.dtype, self.shape, self.data = dtype, shape, memoryview(data).cast("B")
        if dtype not in ITEM_BYTES:
            raise MalformedMessage(f"dtype {dtype!r} does not cross the wire; known: {', '.join(ITEM_BYTES)}.")
        if len(shape) > MAX_AXES or any(n < 0 for n in shape):
            raise MalformedMessage(f"An array of shape {shape} does not cross the wire.")
        if self.data.nbytes != self.nbytes:
            raise MalformedMessage(
                f"An array of shape {shape} and dtype {dtype} needs {self.nbytes} bytes, "
                f"the message carries {self.data.nbytes}."
            )

    def __reduce__(self) -> tuple[Callable[[], Array], tuple[()]]:
        return partial(Array, dtype=self.dtype, shape=self.shape, data=bytes(self.data)), ()

    @classmethod
    def scalar(cls, value: float) -> Array:
        """Return a number as an array of shape (), which broadcasts to everything."""
        return cls(dtype="float64", shape=(), data=struct.pack("<d", value))

    @classmethod
    def of_bytes(cls, content: bytes) -> Array:
        """Return the bytes as they are."""
        return cls(dtype="uint8", shape=(len(content),), data=content)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, bytes(self.data)))

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {list(self.shape)})"
