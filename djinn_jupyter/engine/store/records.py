"""Files of records, each with its own checksum: the format of checkpoints and journals. Independent of sessions.

    file     magic (8 bytes)  format (u32)  record  record ...
    record   kind (4 bytes)  length of the body (u64)  body  checksum (16 bytes)
    array    length of the head (u32)  head (msgpack, `ArrayHead`)  raw values, row-major

Numbers are little-endian; the checksum is XXH3 (128 bits) over kind, length and body. No pickle, no executable
content.

The reader trusts a record, and allocates memory for it, only when its checksum matches and the machine has the memory.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec
import torch
import xxhash
from torch import Tensor

from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.memory.offload.host import HostPlace, HostTier
from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.store.image import ArrayHead
from djinn_jupyter.engine.store.values import DTYPES
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.files import refusal
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import spell_bytes

MAGIC: Final = b"DJINNKPT"
FORMAT: Final = 2
LABEL: Final = b"LABL"
ARRAY: Final = b"ARRY"
SESSION: Final = b"SESS"

_PREFIX = struct.Struct("<8sI")
PREFIX_BYTES: Final = _PREFIX.size
_RECORD = struct.Struct("<4sQ")
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES: Final = 16
_PIECE: Final = 1 << 20
_HEAD_LIMIT: Final = 1 << 16
_LONGEST_SHAPE: Final = 64  # axes: torch's limit


class Digest(Protocol):
    def update(self, piece: Any, /) -> None: ...
    def digest(self) -> bytes: ...


class Taker(Protocol):
    def write(self, part: bytes | memoryview, /) -> int: ...


def digest_of(head: bytes) -> Digest:
    """Return the checksum of a record, already updated with `head`."""
    return cast(Digest, xxhash.xxh3_128(head))


class NotOurs(CheckpointRefused):
    """The file does not begin with the prefix of a record file."""

    def __init__(self) -> None:
        super().__init__("It is not a checkpoint of Djinn.")


class Torn(CheckpointRefused):
    """The file ends within a record."""

    def __init__(self) -> None:
        super().__init__("It is truncated: its end is missing.")


class Damaged(CheckpointRefused):
    """A record's bytes are not those that were written."""

    def __init__(self) -> None:
        super().__init__("It is damaged: its bytes are not those that were written.")


class Writer:
    """Appends records to a binary file, or to an object that takes bytes like one. `written` counts the bytes."""

    def __init__(self, file: Taker) -> None:
        self._file = file
        self.written = 0

    def begin(self) -> None:
        self._write(_PREFIX.pack(MAGIC, FORMAT))

    def record(self, kind: bytes, body: bytes) -> None:
        self._record(kind, len(body), (body,))

    def array(self, head: ArrayHead, tensor: Tensor) -> None:
        """Append the values of `tensor`, which may be a host copy of the tensor that `head` describes."""
        said = msgspec.msgpack.encode(head)
        lead = _LENGTH.pack(len(said)) + said
        self._record(ARRAY, len(lead) + tensor.nbytes, itertools.chain((lead,), raw_pieces(tensor)))

    def _record(self, kind: bytes, length: int, parts: Iterable[bytes | memoryview]) -> None:
        head = _RECORD.pack(kind, length)
        digest = digest_of(head)
        self._write(head)
        for part in parts:
            digest.update(part)
            self._write(part)
        self._write(digest.digest())

    def _write(self, part: bytes | memoryview) -> None:
        self._file.write(part)
        self.written += memoryview(part).nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """A whole record of a file: its kind, the content's start and length in bytes. `head` is set for arrays."""

    kind: bytes
    start: int
    nbytes: int
    head: ArrayHead | None = None


class RecordReader:
    """Finds the records of a binary file and checks each, piece by piece, without storing it; then reads those
    requested. The constructor raises NotOurs, and CheckpointRefused for another format.

    `good` is where the last whole record ended.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
            raise NotOurs
        _, number = _PREFIX.unpack(prefix)
        if number != FORMAT:
            raise CheckpointRefused(refusal(number, FORMAT))
        self.good = _PREFIX.size

    def next(self, most: int | None = None) -> FoundRecord | None:
        """Return the next record; None at the end of the file. Torn; Damaged, unread if longer than `most` bytes."""
        self._file.seek(self.good)
        head = self._file.read(_RECORD.size)
        if not head:
            return None
        if len(head) < _RECORD.size:
            raise Torn
        kind, length = _RECORD.unpack(head)
        start = self.good + _RECORD.size
        if length + _DIGEST_BYTES > self._size - start:
            raise Torn
        if most is not None and length > most:
            raise Damaged
        array, lead = self._array(length) if kind == ARRAY else (None, b"")
        self._check(head, lead, length)
        self.good = start + length + _DIGEST_BYTES
        return FoundRecord(kind=kind, start=start + len(lead), nbytes=length - len(lead), head=array)

    def body(self, found: FoundRecord) -> bytes:
        """Return the content of a record that is no array. Raises CheckpointRefused where memory is short."""
        require_memory(found.nbytes)
        self._file.seek(found.start)
        return self._file.read(found.nbytes)

    def values(self, found: FoundRecord) -> Tensor:
        """Return the values of an array, on the host. Raises Torn, and CheckpointRefused where memory is short."""
        assert found.head is not None
        dtype, shape = DTYPES[found.head.dtype], found.head.shape
        if not found.nbytes:
            return torch.empty(shape, dtype=dtype)
        require_memory(found.nbytes)
        raw = torch.empty(found.nbytes, dtype=torch.uint8)
        self._file.seek(found.start)
        view = _lent(raw)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            if self._file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise Torn
        try:
            return raw.view(dtype).reshape(shape)
        except (RuntimeError, TypeError):
            raise CheckpointRefused(f"Its values of dtype {found.head.dtype} are no plain numbers.") from None

    def _array(self, length: int) -> tuple[ArrayHead, bytes]:
        """Return an array's head and the bytes before its values: sizes are checked, the checksum is not. Damaged."""
        lead = self._file.read(min(length, _LENGTH.size))
        size = _LENGTH.unpack(lead)[0] if len(lead) == _LENGTH.size else _HEAD_LIMIT
        if size > min(_HEAD_LIMIT - 1, length - len(lead)):
            raise Damaged
        said = self._file.read(size)
        head = _head(said)
        if _nbytes(head) != length - len(lead) - size:
            raise Damaged
        return head, lead + said

    def _check(self, head: bytes, lead: bytes, length: int) -> None:
        """Raise Damaged unless the checksum after a record matches; `lead` is the part of its body already read."""
        digest = digest_of(head)
        digest.update(lead)
        left = length - len(lead)
        while left:
            piece = self._file.read(min(left, _PIECE))
            if not piece:
                raise Torn
            digest.update(piece)
            left -= len(piece)
        if digest.digest() != self._file.read(_DIGEST_BYTES):
            raise Damaged


def _head(said: bytes) -> ArrayHead:
    try:
        return msgspec.msgpack.decode(said, type=ArrayHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # msgspec lets the second through
        raise Damaged from None


def _nbytes(head: ArrayHead) -> int:
    """Return the byte size of such an array. Raises Damaged where torch can have none like it."""
    if head.dtype not in DTYPES or len(head.shape) > _LONGEST_SHAPE or any(not 0 <= n < 1 << 62 for n in head.shape):
        raise Damaged
    if math.prod(max(n, 1) for n in head.shape) >= 1 << 62:  # torch counts strides of empty arrays too
        raise Damaged
    return math.prod(head.shape) * DTYPES[head.dtype].itemsize


def require_memory(nbytes: int) -> None:
    """Raise CheckpointRefused unless so many bytes are available: the system overcommits, and kills processes."""
    if nbytes < _PIECE:
        return
    available = main_memory().available
    if nbytes > available:
        raise CheckpointRefused(
            f"It needs {spell_bytes(nbytes)} of main memory, and {spell_bytes(available)} are available."
        )


def raw_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the values of a tensor, row-major, as bytes, piece by piece; use each before requesting the next."""
    if not tensor.numel():
        return
    flat = tensor.detach().to("cpu").contiguous()
    view = _lent(flat)
    for start in range(0, len(view), _PIECE):
        yield view[start : start + _PIECE]


def _lent(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous host tensor, by address: the tiers can no longer free memory that was exported
    as an array. Valid as long as the tensor is."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def arrays_of(
    reader: RecordReader, found: Mapping[int, FoundRecord], device: torch.device
) -> Callable[[int], Tensor | None]:
    """Return a function that reads an array by its number in the file, once; None for a missing one. Those that belong
    on the engine's `device` own their memory, so that the tiers can free it. It raises CheckpointRefused where memory
    is short."""

    @cache
    def array(number: int) -> Tensor | None:
        if (record := found.get(number)) is None or record.head is None:
            return None
        tensor = reader.values(record)
        return tensor.to(device, copy=True) if record.head.at_home else tensor

    return array


# Read a session's tensors wherever they are: on the device, or in the host or disk copy of a swapped-out one. So an
# image of any session can be written at any moment.


def values_of(storage_table: StorageTable, tensor: Tensor) -> Tensor:
    """Return the values of a tensor on the host, for immediate use: the memory may be a tier's. Raises StorageFailed
    where the disk does not give them."""
    storage = (
        storage_table.of(tensor) if storage_table.is_away(tensor) else None
    )  # `of` would count a short-lived tensor
    if storage is None:
        return tensor.detach().to("cpu")
    raw = _copy(storage).view(tensor.dtype)
    return raw.as_strided(tensor.shape, tensor.stride(), raw.storage_offset() + int(tensor.storage_offset()))


def _copy(storage: Storage) -> Tensor:
    """Return the bytes of a swapped-out storage, `uint8[nbytes]`."""
    host, disk = (storage.copies.get(tier) for tier in ("host", "disk"))
    if host is not None and isinstance(host.place, HostPlace) and isinstance(host.keeper, HostTier):
        return host.keeper.span(host.place).view()
    if disk is None or not isinstance(disk.place, DiskPlace) or not isinstance(disk.keeper, DiskTier):
        raise InvariantError("A value of a session is neither on the device nor in a tier.")
    assert disk.checksum is not None
    raw = torch.empty(storage.nbytes, dtype=torch.uint8)
    disk.keeper.read(disk.place, disk.checksum, Span(memory=raw, start=0, nbytes=storage.nbytes))
    return raw
