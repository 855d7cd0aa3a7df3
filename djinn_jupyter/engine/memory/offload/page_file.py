"""The file under the disk tier: positioned reads and writes, past the system's cache where the file system allows it.

Knows nothing of the contents; in tests an in-memory double of `PageFile` stands in.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from djinn_jupyter.fsync import force

BLOCK: Final = 4096  # satisfies every file system and device that requires alignment


class PageFile(Protocol):
    """The interface of the file. Buffers are block-aligned; offsets and lengths are multiples of a block. All methods
    raise OSError."""

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
