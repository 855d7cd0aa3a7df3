"""Force writes to the disk so that they survive a loss of power: files, names in folders, folders.

A file on the disk is found again only if its name is there too, and a name only if its folder's is. Knows nothing
about the files' contents. Waits for the disk, so never call it on the engine's thread while that serves.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

_REFUSED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}  # by file systems that cannot force, or need not
_ON_MACOS: Final = sys.platform == "darwin"
_FULL: Final = 51  # F_FULLFSYNC of macOS, whose `fsync` leaves data in the drive's cache


def force(descriptor: int) -> None:
    """Return once the bytes and the length of an open file are on the disk. Raises OSError."""
    if not _fully(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def force_file(path: Path) -> None:
    """Force a file that a process that has ended wrote. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def force_names(folder: Path) -> None:
    """Return once the creations, renames and removals in a folder are on the disk. Raises OSError."""
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
    """Force with macOS's F_FULLFSYNC. True if the system and the file system support it."""
    if not _ON_MACOS:
        return False
    import fcntl  # missing on platforms where engines cannot run

    try:
        fcntl.fcntl(descriptor, _FULL)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder that only the user can read, with its missing parents, and force each name. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        force_names(one.parent)
