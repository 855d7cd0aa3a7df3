"""A folder that one engine process locks while it lives, and the search for folders whose process has ended.

    ROOT/HOST-0/lock            held by the process (flock); released when the process ends, however it ends
    ROOT/HOST-0/*.session       the journal files of the process (`journal_names`)
    ROOT/HOST-0/*.pages         the disk tier's file, of use only together with those
    ROOT/HOST-0/.*.part         was being written when its process ended; of no use
    ROOT/aside/                 unusable files; nothing is ever deleted from it

Folders of other hosts are left alone: their locks cannot be trusted over a network file system.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from djinn_jupyter.engine.persistence.plain_files import is_plain
from djinn_jupyter.engine.persistence.written_aside import PART
from djinn_jupyter.engine.system.fsync import force_names, make_folder

log = logging.getLogger(__name__)

LOCK: Final = "lock"
ASIDE: Final = "aside"
_KINDS: Final = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class LockedFolder:
    """A locked folder. Invariant: while it is open no other process uses it."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder, self._lock = folder, lock

    def files(self, suffix: str) -> list[Path]:
        """Return the plain files with that suffix. Anything else with it (a link, a pipe, a folder) is not ours and set
        aside."""
        found = sorted(self.folder.glob(f"*{suffix}"))
        for path in found:
            if not is_plain(path):
                self.put_aside(path, OSError(f"it is no plain file ({_kind(path)})"))
        return [path for path in found if path.exists() and is_plain(path)]

    def force_names(self) -> None:
        """Return when created and deleted files are so on the disk too. Raises OSError."""
        force_names(self.folder)

    def release(self) -> None:
        """Release the lock, and remove the folder where nothing is left in it."""
        if not [path for path in self.folder.iterdir() if path.name != LOCK]:
            (self.folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # an engine that starts now has made a lock in it
                self.folder.rmdir()
        os.close(self._lock)

    def put_aside(self, path: Path, why: Exception) -> None:
        """Set a file aside and log it; a file that cannot be moved stays where it is."""
        try:
            log.warning("A session of the journal is set aside as %s: %s", self.set_aside(path), why)
        except OSError as error:
            said = error.strerror or error
            log.warning("%s cannot be used (%s) nor set aside (%s); it stays where it is", path, why, said)

    def set_aside(self, path: Path) -> Path:
        """Move a file where no process uses or deletes it; return its new path. Raises OSError."""
        folder = self.folder.parent / ASIDE
        make_folder(folder)
        target = _unused(folder / path.name)
        path.rename(target)
        force_names(folder)
        return target

    def take_over(self, other: LockedFolder, suffix: str, scraps: str) -> None:
        """Take in the files of a folder whose process has ended; delete its `scraps` and release it."""
        for path in other.files(suffix):
            path.rename(_unused(self.folder / path.name))
        self.force_names()
        other.clear(scraps)
        other.clear(PART)
        other.release()

    def clear(self, suffix: str) -> None:
        for path in self.files(suffix):
            path.unlink(missing_ok=True)


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
            locked = _locked(folder)
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
        locked = _locked(folder)
        if locked is not None:
            return locked


def _locked(folder: Path) -> LockedFolder | None:
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


def _kind(path: Path) -> str:
    return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "a device")


def _unused(path: Path) -> Path:
    number = 0
    while (
        found := path if not number else path.with_name(f"{path.stem}-{number}{path.suffix}")
    ).exists() or found.is_symlink():
        number += 1
    return found
