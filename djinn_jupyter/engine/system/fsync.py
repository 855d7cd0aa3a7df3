"""Forcing what was written to the disk, so that it is there after a loss of power: files, names in folders, folders.

A file that is on the disk is found again only when its name is, and a name only when the folder's own is. Knows nothing
of what the files are. Waits for the disk, so it is never called on the engine's thread while that serves.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

_REFUSED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}  # by file systems that cannot force this, or need not
_FULL: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, whose `fsync` leaves it in the drive's cache


def force(descriptor: int) -> None:
    """Return when the bytes of an open file, and its length, are on the disk. Raises OSError."""
    if not _fully(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def force_file(path: Path) -> None:
    """What was written to a file by a process that has ended."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def force_names(folder: Path) -> None:
    """Return when files that were made, renamed and removed in a folder are so on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _fully(descriptor):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    finally:
        os.close(descriptor)


def _fully(descriptor: int) -> bool:
    """Whether the system has a stronger word than `fsync` for it, and the file system knows that."""
    if _FULL is None:
        return False
    try:
        fcntl.fcntl(descriptor, _FULL)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def make_folder(folder: Path) -> None:
    """A folder of the user's own, with those above it that are missing, on the disk. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        force_names(one.parent)
