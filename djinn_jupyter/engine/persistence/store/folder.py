"""The journal of an engine in a store: its files lie in a folder of this machine, of use to this engine alone, and what
has to survive the machine lies in the store (`files`), whose head says which engine may write (`claims`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from djinn_jupyter.engine.persistence.journal_folder import JournalFolder
from djinn_jupyter.engine.persistence.journal_names import SUFFIX
from djinn_jupyter.engine.persistence.lease import JournalLease, await_earlier, claim
from djinn_jupyter.engine.persistence.locked_folder import LockedFolder, take_folder
from djinn_jupyter.engine.persistence.store.claims import HeadClaims
from djinn_jupyter.engine.persistence.store.files import StoredFiles
from djinn_jupyter.engine.persistence.store.head import HeadObject, JournalHead, StoredPart
from djinn_jupyter.engine.persistence.store.journal_store import JournalStore
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.wire.host import host_name

log = logging.getLogger(__name__)


class StoredFolder(JournalFolder):
    """A folder whose journal is this engine's as long as its lease lasts."""

    forces_first = True

    def __init__(self, local: LockedFolder, lease: JournalLease, stored: StoredFiles) -> None:
        super().__init__(local.folder, stored)
        self._local, self._lease, self._stored = local, lease, stored

    def require(self) -> None:
        self._lease.require()

    def release(self) -> None:
        """End the lease, and with it all writing. After a lost one only the folder of this machine is released."""
        try:
            self._lease.end()
        except ClaimLost:
            pass
        except OSError as error:
            log.warning("The next engine waits until this one's claim has run out: %s", error)
        self._local.clear(SUFFIX)
        self._local.release()

    def force_names(self) -> None:
        """Delete what the store has of closed sessions, which its head does not name any more."""
        self._stored.delete_unnamed()

    def set_aside(self, path: Path) -> str:
        return self._stored.set_aside(path)


def take_stored_folder(store: JournalStore, here: Path, scraps: str, wake: Callable[[], None]) -> StoredFolder:
    """Claim the journal in a store, wait until no other engine answers, and return a folder below `here` with the files
    of all earlier ones. Raises OSError, and ClaimLost where yet another engine claims it meanwhile."""
    head = HeadObject(store)
    lease = claim(HeadClaims(head, store.address), wake)
    try:
        await_earlier(lease)
        local = take_folder(here, host_name(), SUFFIX, scraps)
        local.clear(SUFFIX)
        _fetch(store, head.read(), local.folder)
        lease.require()
        lease.claims.forget_earlier(lease.epoch)
    except BaseException:
        lease.stop()
        raise
    stored = StoredFiles(store, head, lease.epoch, lost=lambda: _look(lease))
    stored.forget_unnamed()
    return StoredFolder(local, lease, stored)


def _look(lease: JournalLease) -> None:
    with suppress(OSError):
        lease.look()


def _fetch(store: JournalStore, head: JournalHead, folder: Path) -> None:
    """Write the files that a head names, oldest first."""
    for number, (name, parts) in enumerate(head.files.items()):
        path = folder / _plain(name)
        _write(store, path, parts)
        os.utime(path, (number, number))


def _write(store: JournalStore, path: Path, parts: tuple[StoredPart, ...]) -> None:
    with path.open("wb") as file:
        for part in parts:
            try:
                file.write(store.read(part.object)[0])
            except FileNotFoundError:
                log.warning("%s/%s is gone; an image before it is used", store.address, part.object)
                return


def _plain(name: str) -> str:
    """Return the name of a file in one folder. Raises OSError for another: the head may be anyone's."""
    if Path(name).name != name or not name.endswith(SUFFIX) or name == SUFFIX:
        raise OSError(f"its head names {name!r}, which is no file of a journal")
    return name
