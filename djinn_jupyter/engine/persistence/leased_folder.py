"""The folder of a journal that several machines share. It is named after the epoch of its engine's lease, so the epoch
is in the path of every write: an engine that was taken over finds its folder gone, and writes to files that no one
reads.

    ROOT/7.claim, ROOT/7.ended   the claims (`claim_files`)
    ROOT/7/*.session, *.pages    the files of the engine of epoch 7
    ROOT/7.sealed/               the same while a later engine takes them over
    ROOT/aside/                  unusable files; nothing is ever deleted from it
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from djinn_jupyter.engine.persistence.claim_files import ClaimFiles
from djinn_jupyter.engine.persistence.journal_folder import JournalFolder
from djinn_jupyter.engine.persistence.lease import JournalLease, await_earlier, claim
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.fsync import force, force_names, make_folder
from djinn_jupyter.plain_files import is_plain
from djinn_jupyter.written_aside import written_aside

SEALED: Final = ".sealed"
_FOLDER: Final = re.compile(rf"(\d{{1,12}})({re.escape(SEALED)})?")


class LeasedFolder(JournalFolder):
    """A folder that is this engine's as long as its lease lasts."""

    forces_first = True

    def __init__(self, folder: Path, lease: JournalLease) -> None:
        super().__init__(folder)
        self._lease = lease

    def require(self) -> None:
        self._lease.require()

    def release(self) -> None:
        """End the lease, and with it all writing. After a lost one there is nothing to release."""
        with suppress(ClaimLost):
            self._lease.end()
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def take_over(self, earlier: Path, suffix: str, scraps: str, *, ended: bool) -> None:
        """Take in the files of an earlier engine. Sessions are copied: what it may still write goes to files that are
        deleted here. `scraps` are taken only from one that is known to have ended, which writes no more into them."""
        sealed = _seal(earlier)
        for path in _plain(sealed, suffix):
            self._copy(path)
        for path in _plain(sealed, scraps) if ended else ():
            path.rename(self.folder / path.name)
        self.force_names()
        self._lease.require()
        shutil.rmtree(sealed, ignore_errors=True)

    def _copy(self, path: Path) -> None:
        """Copy a file, whole and to the disk, unless an engine that was taken over meanwhile had copied it."""
        target = self.folder / path.name
        if target.exists():
            return
        with written_aside(target) as (copy, aside), path.open("rb") as original:
            shutil.copyfileobj(original, copy)
            copy.flush()
            force(copy.fileno())
            aside.rename(target)


def take_leased_folder(root: Path, suffix: str, scraps: str, wake: Callable[[], None]) -> LeasedFolder:
    """Claim the journal in a shared folder, wait until no other engine answers, and return a folder with the files of
    all earlier ones. Raises OSError, and ClaimLost where yet another engine claims it meanwhile."""
    make_folder(root)
    lease = claim(ClaimFiles(root), wake)
    try:
        ended = await_earlier(lease)
        own = LeasedFolder(root / str(lease.epoch), lease)
        own.folder.mkdir(mode=0o700)
        force_names(root)
        for epoch, folder in sorted(_earlier(root, lease.epoch), reverse=True):  # a later copy counts
            own.take_over(folder, suffix, scraps, ended=ended.get(epoch, True))
        lease.claims.forget_earlier(lease.epoch)
    except BaseException:
        lease.stop()
        raise
    return own


def _earlier(root: Path, epoch: int) -> list[tuple[int, Path]]:
    found = [(named, path) for path in root.iterdir() if (named := _FOLDER.fullmatch(path.name)) and path.is_dir()]
    return [(int(named[1]), path) for named, path in found if int(named[1]) != epoch]


def _seal(folder: Path) -> Path:
    """Rename a folder, so that its engine finds it no more."""
    if folder.name.endswith(SEALED):
        return folder
    return folder.rename(folder.with_name(folder.name + SEALED))


def _plain(folder: Path, suffix: str) -> list[Path]:
    return [path for path in sorted(folder.glob(f"*{suffix}")) if is_plain(path)]
