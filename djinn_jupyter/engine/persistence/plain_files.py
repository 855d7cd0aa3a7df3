"""Open files in folders where any user may have put anything: only plain files are opened, and no open blocks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def is_plain(path: Path) -> bool:
    """True for a regular file itself, not for a link to one. Raises OSError."""
    return stat.S_ISREG(path.lstat().st_mode)


def open_plain(path: Path, *, linked: bool = True) -> BinaryIO:
    """Open a regular file to read, through a link where `linked`. Raises OSError; a pipe does not block."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if linked else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
