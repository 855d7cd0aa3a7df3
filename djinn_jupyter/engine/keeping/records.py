"""Files of records, each with its own checksum: what checkpoints and journals are made of. Knows no session.

    file     magic (8 bytes)  format (u32)  record  record ...
    record   kind (4 bytes)  length of the body (u64)  body  checksum (16 bytes)
    array    length of the head (u32)  head (msgpack, `ArrayHead`)  raw values, row-major

Numbers are little-endian; the checksum is BLAKE2b over kind, length and body. No pickle, nothing that runs.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.keeping.shelf import ArrayHead
from djinn_jupyter.engine.keeping.values import DTYPES

MAGIC: Final = b"DJINNKPT"
FORMAT: Final = 1
LABEL: Final = b"LABL"
ARRAY: Final = b"ARRY"
SESSION: Final = b"SESS"

_PREFIX = struct.Struct("<8sI")
_RECORD = struct.Struct("<4sQ")
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES: Final = 16
_PIECE: Final = 1 << 20
_HEAD_LIMIT: Final = 1 << 16


class NotOurs(Exception):
    """The file does not begin as files of records do."""


class OtherFormat(Exception):
    """The file has another format; its number is the argument."""


class Torn(Exception):
    """The file ends within a record."""


class Damaged(Exception):
    """A record's bytes are not those that were written."""


class Writer:
    """Appends records to a binary file. `written` counts bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.written = 0

    def begin(self) -> None:
        self._write(_PREFIX.pack(MAGIC, FORMAT))

    def record(self, kind: bytes, body: bytes) -> None:
        self._record(kind, len(body), (body,))

    def array(self, head: ArrayHead, tensor: Tensor) -> None:
        """The values of `tensor`, which may be a copy on the host of what the head speaks of."""
        said = msgspec.msgpack.encode(head)
        lead = _LENGTH.pack(len(said)) + said
        self._record(ARRAY, len(lead) + tensor.nbytes, itertools.chain((lead,), raw_pieces(tensor)))

    def _record(self, kind: bytes, length: int, parts: Iterable[bytes | memoryview]) -> None:
        head = _RECORD.pack(kind, length)
        digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
        self._write(head)
        for part in parts:
            digest.update(part)
            self._write(part)
        self._write(digest.digest())

    def _write(self, part: bytes | memoryview) -> None:
        self._file.write(part)
        self.written += memoryview(part).nbytes


class Reader:
    """Reads records from a binary file, each checked before it is handed out. Raises NotOurs and OtherFormat at once.

    `good` is where the last whole record ended.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
            raise NotOurs
        _, number = _PREFIX.unpack(prefix)
        if number != FORMAT:
            raise OtherFormat(number)
        self.good = _PREFIX.size

    def next(self) -> tuple[bytes, bytes | tuple[ArrayHead, Tensor]] | None:
        """Kind and body of the next record, an array's as its head and a tensor on the host; None at the end of the
        file. Raises Torn and Damaged."""
        head = self._file.read(_RECORD.size)
        if not head:
            return None
        if len(head) < _RECORD.size:
            raise Torn
        kind, length = _RECORD.unpack(head)
        if length + _DIGEST_BYTES > self._size - self._file.tell():
            raise Torn
        digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
        raw = self._bytes(length, digest) if kind != ARRAY else self._array_bytes(length, digest)
        if digest.digest() != self._file.read(_DIGEST_BYTES):
            raise Damaged
        self.good = self._file.tell()
        return kind, raw if isinstance(raw, bytes) else _array(*raw)

    def _bytes(self, length: int, digest: hashlib.blake2b) -> bytes:
        body = self._file.read(length)
        digest.update(body)
        return body

    def _array_bytes(self, length: int, digest: hashlib.blake2b) -> tuple[bytes, Tensor]:
        """Head and raw bytes, not yet believed."""
        lead = self._bytes(min(length, _LENGTH.size), digest)
        size = _LENGTH.unpack(lead)[0] if len(lead) == _LENGTH.size else 0
        if size > min(_HEAD_LIMIT, length - len(lead)):
            raise Damaged
        head = self._bytes(size, digest)
        raw = torch.empty(length - len(lead) - size, dtype=torch.uint8)
        view = raw.numpy().data
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            if self._file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise Torn
            digest.update(piece)
        return head, raw


def _array(head: bytes, raw: Tensor) -> tuple[ArrayHead, Tensor]:
    try:
        said = msgspec.msgpack.decode(head, type=ArrayHead)
        dtype = DTYPES[said.dtype]
    except (msgspec.MsgspecError, KeyError):
        raise Damaged from None
    if any(n < 0 for n in said.shape) or math.prod(said.shape) * dtype.itemsize != raw.numel():
        raise Damaged
    if not raw.numel():
        return said, torch.empty(said.shape, dtype=dtype)
    return said, raw.view(dtype).reshape(said.shape)


def raw_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The values of a tensor, row-major, as bytes, piece by piece. Copies: memory that was lent out as an array can no
    longer be given back by the tiers."""
    if not tensor.numel():
        return
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), _PIECE):
        yield flat[start : start + _PIECE].clone().numpy().data
