"""Open files in folders where any user may have put anything: only plain files are opened, and no open blocks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

UNBLOCKED: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags, of which Windows has the last alone."""


def is_plain(path: Path) -> bool:
    """True for a regular file itself, not for a link to one. Raises OSError."""
    return stat.S_ISREG(path.lstat().st_mode)


def open_plain(path: Path, *, linked: bool = True) -> BinaryIO:
    """Open a regular file to read, through a link where `linked`. Raises OSError; a pipe does not block."""
    descriptor = os.open(path, os.O_RDONLY | UNBLOCKED | (0 if linked else os.O_NOFOLLOW))
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def contents_of(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also where there is no memory for them."""
    with open_plain(path) as file:
        try:
            return file.read()
        except (MemoryError, OverflowError):
            raise OSError(errno.ENOMEM, "it is larger than the memory that is left") from None
