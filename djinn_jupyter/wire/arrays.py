"""Arrays as they cross the wire: a dtype name, a shape and raw little-endian bytes. Refuses to compute with them."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from djinn_jupyter.errors import MalformedMessage

ITEM_BYTES = {"bool": 1, "uint8": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
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


# Lossless packing of numbers: bytes of equal significance side by side, then deflated. Neighbouring numbers often share
# exponents but not fractions. With every first byte, then every second, ..., similar bytes are adjacent and deflate
# better. zstd would give the same size faster, which only a fast connection would notice, at the cost of one more
# dependency on both sides.

STRIDES: Final = (1, 2, 4, 8)  # bytes of a number; 1 is for texts
SAMPLE_BYTES: Final = 16 * 2**10
_LEVEL: Final = 1  # higher levels hardly shrink more, and take longer


def pack(content: bytes | memoryview, stride: int) -> bytes:
    """Return the bytes packed with a stride."""
    return zlib.compress(_apart(bytes(content), stride), _LEVEL)


def pack_where_fewer(content: bytes) -> tuple[bytes, int | None]:
    """Return the bytes packed, with the stride; or unchanged, with None, where packing does not shrink them."""
    stride = best_stride(content)
    packed = pack(content, stride)
    return (packed, stride) if len(packed) < len(content) else (content, None)


def unpack(packed: bytes | memoryview, stride: int, size: int) -> bytes | bytearray:
    """Return the unpacked bytes, `size` in all. MalformedMessage for another size."""
    if stride not in STRIDES:
        raise MalformedMessage(f"A piece is packed with a stride of {stride}, which is none of {STRIDES}.")
    reader = zlib.decompressobj()
    try:
        apart = reader.decompress(packed, size + 1)  # one more shows that there are more
    except zlib.error as error:
        raise MalformedMessage(f"A piece cannot be unpacked: {error}.") from None
    if len(apart) != size or not reader.eof:
        raise MalformedMessage(f"A piece of {size} bytes is of another size when it is unpacked.")
    return _together(apart, stride)


def best_stride(content: bytes | memoryview, strides: Sequence[int] = STRIDES) -> int:
    """Return the stride with which a sample from the middle packs best."""
    middle = max(0, len(content) - SAMPLE_BYTES) // 2 // STRIDES[-1] * STRIDES[-1]
    sample = bytes(content[middle : middle + SAMPLE_BYTES])
    return min(strides, key=lambda stride: len(pack(sample, stride)))


def _apart(content: bytes, stride: int) -> bytes:
    """Return all first bytes of the numbers, then all second ones, ..."""
    return content if stride == 1 else b"".join(content[place::stride] for place in range(stride))


def _together(apart: bytes, stride: int) -> bytes | bytearray:
    if stride == 1:
        return apart
    content, begin = bytearray(len(apart)), 0
    for place in range(stride):
        count = len(range(place, len(apart), stride))
        content[place::stride] = apart[begin : begin + count]
        begin += count
    return content
