"""The file under the disk tier: positioned reads and writes, past the system's cache where the file system allows it.

Knows nothing of the contents; tests use an in-memory double of `PageFile`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import xxhash

from djinn_jupyter.engine.memory.offload.extents import Extents, Span
from djinn_jupyter.engine.memory.offload.host import CopyTier, Memory
from djinn_jupyter.engine.memory.offload.swappable import Place
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.engine.system.host_memory import pageable
from djinn_jupyter.errors import StorageFailed, TierFull
from djinn_jupyter.files import force
from djinn_jupyter.units import spell_bytes

BLOCK: Final = 4096  # satisfies every file system and device that requires alignment


class PageFile(Protocol):
    """The interface of the file. Buffers are block-aligned; offsets and lengths are whole blocks. All raise OSError."""

    def resize(self, size: int) -> None: ...
    def write(self, buffer: memoryview, offset: int) -> int: ...
    def read(self, buffer: memoryview, offset: int) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class DirectFile:
    """A file opened with O_DIRECT, so that pages do not evict other programs' files from the page cache; plain where
    that is refused (tmpfs).

    Without `keep` the file is unlinked once open: its space is freed whenever and however the process ends.
    """

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not keep:
            os.unlink(path)
        self.direct = self._set_direct(True)

    def _set_direct(self, wanted: bool) -> bool:
        """Switch O_DIRECT on or off where the system allows it. Return whether it is on now."""
        flag = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | flag if wanted else flags & ~flag)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return not wanted
        return wanted and bool(flag)

    def resize(self, size: int) -> None:
        """Truncate, or extend with allocated blocks, so that ENOSPC is raised here and not in the middle of a write."""
        before = os.fstat(self._file).st_size
        if size > before and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, before, size - before)
        else:
            os.ftruncate(self._file, size)

    def write(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.pwrite(self._file, buffer, offset)
        except OSError as error:
            self._fall_back(error)
            return os.pwrite(self._file, buffer, offset)

    def read(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._file, [buffer], offset)
        except OSError as error:
            self._fall_back(error)
            return os.preadv(self._file, [buffer], offset)

    def _fall_back(self, error: OSError) -> None:
        """Switch to plain I/O: some file systems open with O_DIRECT and then refuse it. Re-raises any other error."""
        if error.errno != errno.EINVAL or not self.direct:
            raise error
        self.direct = self._set_direct(False)

    def sync(self) -> None:
        force(self._file)

    def close(self) -> None:
        os.close(self._file)


# The disk tier: copies in one preallocated file, each with a checksum. Accounts for its places and moves its bytes.
# The accounting (`allocate`, `free`) runs on the engine's thread; `write` and `read` run on the mover's and touch
# bytes only.

GROWTH_BYTES: Final = 64 << 20
STAGING_BYTES: Final = 4 << 20  # a chunk is checksummed and written while it is in the processor's cache

FileCall = Callable[[memoryview, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlace:
    """`nbytes` of the file starting at byte `start`. A journal records it with the checksum to find a page again after
    a crash. The run taken is rounded up to the block."""

    start: int
    nbytes: int


class DiskTier(CopyTier[DiskPlace]):
    """Copies in a file, up to a limit.

    Invariants: a place has one owner until it is freed; a verb that raises has not changed the accounting; the bytes
    that `read` fetches have the checksum that `write` returned, or StorageFailed is raised. The file is allocated in
    steps before anything is written to it, so that a full disk is detected before it does harm, and is truncated when
    its end is free.
    """

    tier = "disk"
    advice = " Close a session, or allow more with --disk-memory."

    def __init__(self, file: PageFile, limit_bytes: int, *, memory: Memory = pageable) -> None:
        super().__init__(limit_bytes // BLOCK * BLOCK)
        self._file = file
        self._extents = Extents(0)
        self._staging = memory(STAGING_BYTES)
        self._buffer = memoryview(cast(Any, self._staging.numpy()))
        self._alone = threading.Lock()

    def _allocate(self, size: int) -> DiskPlace:
        rounded = _rounded(size)
        start = self._extents.allocate(rounded)
        if start is None:
            self.grow(self._extents.used_end + rounded)
            start = self._extents.allocate(rounded)
            assert start is not None
        self._count(rounded, 1)
        return DiskPlace(start=start, nbytes=size)

    def adopt(self, place: DiskPlace) -> None:
        """Take a place that an earlier engine had taken, found in its journal. Raises TierFull and InvariantError."""
        rounded = _rounded(place.nbytes)
        if place.start + rounded > self._extents.capacity:
            self.grow(place.start + rounded)
        self._extents.take_at(place.start, rounded)
        self._count(rounded, 1)

    def free(self, place: Place) -> None:
        assert isinstance(place, DiskPlace)
        rounded = _rounded(place.nbytes)
        self._extents.free(place.start, rounded)
        self._count(-rounded, -1)
        end = -(-self._extents.used_end // GROWTH_BYTES) * GROWTH_BYTES
        if self._extents.capacity - end >= 2 * GROWTH_BYTES or (not self.places and self._extents.capacity):
            self._resize(end)

    def grow(self, end: int) -> None:
        """Extend the file to at least `end` bytes, with disk blocks allocated for all of them; what it has stays.
        Raises TierFull."""
        capacity = min(-(-end // GROWTH_BYTES) * GROWTH_BYTES, self.limit)
        if end > capacity:
            raise TierFull(f"The file would have {spell_bytes(end)}.")
        try:
            self._resize(capacity)
        except OSError as error:
            raise TierFull(f"The disk refused a file of {spell_bytes(capacity)}: {error.strerror}.") from error

    def _resize(self, end: int) -> None:
        self._file.resize(end)
        self._extents.resize(end)
        self.allocated = end

    def write(self, place: DiskPlace, source: Span) -> int:
        """Write the bytes and return their checksum. Raises StorageFailed."""
        summed, direct = xxhash.xxh3_64(), _direct(source)
        with self._alone:
            for at, size in _chunks(place.nbytes):
                chunk = self._staged(source, at, size) if direct is None else direct[at : at + size]
                summed.update(chunk[:size])
                self._exactly(chunk, self._file.write, place.start + at, "took")
        return int(summed.intdigest())

    def _staged(self, source: Span, at: int, size: int) -> memoryview:
        self._staging[:size].copy_(source.view()[at : at + size])
        return self._buffer[: _rounded(size)]

    def read(self, place: DiskPlace, checksum: int, target: Span) -> None:
        """Read the bytes into `target`. Raises StorageFailed, also where the checksum differs from the one written."""
        summed, direct = xxhash.xxh3_64(), _direct(target)
        with self._alone:
            for at, size in _chunks(place.nbytes):
                chunk = self._buffer[: _rounded(size)] if direct is None else direct[at : at + size]
                self._exactly(chunk, self._file.read, place.start + at, "gave")
                summed.update(chunk[:size])
                if direct is None:
                    target.view()[at : at + size].copy_(self._staging[:size])
        if (found := summed.intdigest()) != checksum:
            raise StorageFailed(
                f"The disk gave back other bytes than were written: {spell_bytes(place.nbytes)} at {place.start} "
                f"have the checksum {found:016x} and had {checksum:016x}. What they belonged to cannot be restored."
            )

    def _exactly(self, chunk: memoryview, verb: FileCall, offset: int, word: str) -> None:
        try:
            done = verb(chunk, offset)
        except OSError as error:
            raise StorageFailed(
                f"The disk {word} nothing: {error.strerror or error}. Free some space and try again."
            ) from error
        if done != len(chunk):
            raise StorageFailed(f"The disk {word} {done} bytes of {len(chunk)}. Free some space and try again.")

    def sync(self) -> None:
        """Return once all writes would survive a loss of power. Raises StorageFailed."""
        try:
            self._file.sync()
        except OSError as error:
            raise StorageFailed(f"The disk did not confirm what was written: {error.strerror or error}.") from error

    def close(self) -> None:
        with self._alone:
            self._file.close()

    def check(self, held: Iterable[DiskPlace]) -> None:
        """Raise InvariantError unless the places taken are exactly those `held`, and the sums agree."""
        taken = [(place.start, _rounded(place.nbytes)) for place in held]
        self._extents.check(taken)
        if (sum(size for _, size in taken), len(taken)) != (self.used, self.places):
            raise InvariantError(f"The disk tier counts {self.used} bytes in {self.places} places; {taken} are held.")
        if self._extents.capacity > self.limit:
            raise InvariantError(f"The disk tier's file has {self._extents.capacity} bytes of {self.limit}.")


def _direct(span: Span) -> memoryview | None:
    """Return the bytes in place where the file can transfer them directly; None where they must be staged. By address:
    the tiers can no longer free memory that was exported as an array."""
    address = span.memory.data_ptr() + span.start
    if span.memory.device.type != "cpu" or address % BLOCK or span.nbytes % BLOCK:
        return None
    return memoryview((ctypes.c_char * span.nbytes).from_address(address)).cast("B")


def _chunks(nbytes: int) -> Iterable[tuple[int, int]]:
    return ((at, min(STAGING_BYTES, nbytes - at)) for at in range(0, nbytes, STAGING_BYTES))


def _rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
