"""A folder that one engine process locks while it lives, and the search for folders whose process has ended.

    ROOT/HOST-0/lock            held by the process (flock); released when the process ends, however it ends
    ROOT/HOST-0/*.session       the journal files of the process (`JournalName`)
    ROOT/HOST-0/*.pages         the disk tier's file, of use only together with those
    ROOT/HOST-0/.*.part         was being written when its process ended; of no use
    ROOT/aside/                 unusable files; nothing is ever deleted from it

Folders of other hosts are left alone: their locks cannot be trusted over a network file system.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from djinn_jupyter.engine.store.journal_file import JournalFolder, unused
from djinn_jupyter.files import PART, force_names, make_folder

log = logging.getLogger(__name__)

LOCK: Final = "lock"


class LockedFolder(JournalFolder):
    """A locked folder."""

    def __init__(self, folder: Path, lock: int) -> None:
        super().__init__(folder)
        self.lock = lock

    def require(self) -> None:
        """Do nothing: the lock lasts as long as the process."""

    def release(self) -> None:
        """Release the lock, and remove the folder if it is empty."""
        if not [path for path in self.folder.iterdir() if path.name != LOCK]:
            (self.folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # a starting engine has made a lock in it
                self.folder.rmdir()
        os.close(self.lock)

    def take_over(self, other: LockedFolder, suffix: str, scraps: str) -> None:
        """Take over the files of a folder whose process has ended; delete its `scraps` and release it."""
        for path in other.files(suffix):
            path.rename(unused(self.folder / path.name))
        self.force_names()
        other.clear(scraps)
        other.clear(PART)
        other.release()


def take_folder(root: Path, host: str, suffix: str, scraps: str) -> LockedFolder:
    """Return a locked folder with the files of all folders of this host that no process holds; files that end in
    `scraps` are not moved. Its contents then survive a loss of power. Raises OSError."""
    make_folder(root)
    free = list(_free(root, host))
    own = free[0] if free else _new(root, host)
    for other in free[1:]:
        own.take_over(other, suffix, scraps)
    own.clear(PART)
    force_names(root)
    force_names(own.folder)
    return own


def _free(root: Path, host: str) -> Iterator[LockedFolder]:
    for folder in sorted(root.glob(f"{host}-*")):
        try:
            locked = lock_folder(folder)
        except OSError as error:
            log.warning("%s is no folder of a journal, and left alone: %s", folder, error.strerror or error)
            continue
        if locked is not None:
            yield locked


def _new(root: Path, host: str) -> LockedFolder:
    number = 0
    while True:
        folder = root / f"{host}-{number}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
            continue
        locked = lock_folder(folder)
        if locked is not None:
            return locked


def lock_folder(folder: Path) -> LockedFolder | None:
    """Return the folder, locked; None where another process holds it, or it was removed meanwhile."""
    import fcntl  # not where engines cannot run

    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder / LOCK).st_ino == os.fstat(lock).st_ino:
            return LockedFolder(folder, lock)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
