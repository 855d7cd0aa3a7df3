"""A journal's files in a store. Each file lies on this machine too, where images are appended to it. Flushing it puts
the appended bytes as one more object, and names that in the head.

Objects that the head no longer names are deleted once a newer head exists. The next engine deletes the objects of an
engine that was killed, or that wrote after it was taken over (`forget_unnamed`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from djinn_jupyter.engine.store.journal_file import SUFFIX, Disk, JournalFile, JournalFolder
from djinn_jupyter.engine.store.locked_folder import LockedFolder, take_folder
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.remote.engine.lease import JournalLease, await_earlier, claim
from djinn_jupyter.remote.engine.objects import HeadClaims, HeadObject, JournalHead, JournalStore, StoredPart
from djinn_jupyter.wire.own import host_name

log = logging.getLogger(__name__)

LONGEST_BYTES: Final = 32 << 20  # of an object: it is in main memory while it is put
LARGE_BYTES: Final = 4 << 20
MOST_PARTS: Final = 64  # a recovery reads them one by one
RETRY_SECONDS: Final = 1.0
ASIDE: Final = "aside"
Files = dict[str, tuple[StoredPart, ...]]


class StoredFiles(Disk):
    """The files of the engine of one epoch. `lost` is called when another engine's claim on the journal is seen. May be
    used from any thread."""

    def __init__(self, store: JournalStore, head: HeadObject, epoch: int, lost: Callable[[], None]) -> None:
        self._store, self._head, self._epoch, self._lost = store, head, epoch, lost
        self._removed: set[str] = set()  # names: a file that is being flushed meanwhile does not come back
        self._unnamed: list[str] = []
        self._retry_at = 0.0

    def force(self, file: JournalFile) -> None:
        name, there = file.path.name, self._parts(file.path.name)
        parts = self._put(file, there)
        replaced = [path.name for path in file.replaced]
        if parts != there or replaced:
            self._change(lambda files: self._named(files, name, parts, replaced))
        super().remove(file.replaced)
        self.delete_unnamed()

    def force_found(self, paths: Sequence[Path]) -> None:
        older = [path.name for path in paths[:-1]]
        if older:
            self._change(lambda files: _without(files, older))
        super().remove(paths[:-1])

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove the files from the head. After a failure it is retried at most once a second, because the engine's
        thread waits for it."""
        if time.monotonic() < self._retry_at:
            raise OSError(f"{self._store.address} could not be written to just now")
        names = [path.name for path in paths]
        self._removed.update(names)
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._change(lambda files: _without(files, names))
        self._retry_at = 0.0
        super().remove(paths)

    def set_aside(self, path: Path) -> str:
        """Put an unusable file where it is never deleted, and return its address."""
        name = f"{ASIDE}/{self._epoch}/{path.name}"
        self._store.put(name, path.read_bytes())
        self.remove([path])
        return f"{self._store.address}/{name}"

    def delete_unnamed(self) -> None:
        """Delete objects that the head no longer names."""
        unnamed, self._unnamed = self._unnamed, []
        if unnamed:
            try:
                self._store.delete(unnamed)
            except OSError as error:
                log.warning("Objects that no session needs are left to the next engine: %s", error)

    def forget_unnamed(self) -> None:
        """Delete the objects of earlier engines that the head does not name."""
        try:
            named = self._head.read().objects()
            there = [name for name in self._store.names() if self._is_earlier(name)]
        except OSError as error:
            log.warning("Objects that no session needs are left to the next engine: %s", error)
        else:
            self._unnamed += [name for name in there if name not in named]
            self.delete_unnamed()

    def _is_earlier(self, name: str) -> bool:
        epoch = name.partition("/")[0]
        return epoch.isdecimal() and int(epoch) < self._epoch

    def _parts(self, name: str) -> tuple[StoredPart, ...]:
        """Return the head's objects of a file. Raises OSError."""
        return self._change(lambda files: files).get(name, ())

    def _put(self, file: JournalFile, there: tuple[StoredPart, ...]) -> tuple[StoredPart, ...]:
        """Put what the store lacks of a file; return all of its parts. Many small ones at the end are put once more, as
        one."""
        if len(there) >= MOST_PARTS:
            large = next((number for number, one in enumerate(there) if one.nbytes < LARGE_BYTES), len(there))
            there = there[:large]
        start, end = sum(one.nbytes for one in there), file.length
        made = list(there)
        while start < end:
            with file.opened() as descriptor:
                part = os.pread(descriptor, min(LONGEST_BYTES, end - start), start)
            if not part:
                raise OSError(f"{file.path} was cut")
            name = f"{self._epoch}/{file.path.name}/{start}-{start + len(part)}"
            self._store.put(name, part)
            made.append(StoredPart(name, len(part)))
            start += len(part)
        return tuple(made)

    def _named(self, files: Files, name: str, parts: tuple[StoredPart, ...], replaced: Sequence[str]) -> Files:
        left = _without(files, (name, *replaced))
        return left if name in self._removed else {**left, name: parts}

    def _change(self, change: Callable[[Files], Files]) -> Files:
        """Change the files that the head names; return them. Raises OSError, also where another engine has claimed the
        journal."""
        before: set[str] = set()

        def changed(head: JournalHead) -> JournalHead:
            nonlocal before
            if head.epoch != self._epoch:
                raise TakenOver
            before = head.objects()
            files = change(head.files)
            return head if files is head.files else replace(head, files=files)

        try:
            after = self._head.change(changed)
        except TakenOver:
            self._lost()
            raise OSError("another engine has claimed the journal") from None
        self._unnamed += before - after.objects()
        return after.files


class TakenOver(Exception):
    """The head has another epoch than this engine's."""


def _without(files: Files, names: Sequence[str]) -> Files:
    """Return the files without some; the same object where none of them is there."""
    if files.keys().isdisjoint(names):
        return files
    return {name: parts for name, parts in files.items() if name not in names}


# The journal of an engine in a store: its files lie in a folder of this machine, which only this engine uses, and what
# must survive the machine lies in the store (`files`), whose head says which engine may write (`claims`).


class StoredFolder(JournalFolder):
    """A folder whose journal belongs to this engine while its lease lasts."""

    forces_first = True

    def __init__(self, local: LockedFolder, lease: JournalLease, stored: StoredFiles) -> None:
        super().__init__(local.folder, stored)
        self._local, self._lease, self._stored = local, lease, stored

    def require(self) -> None:
        self._lease.require()

    def release(self) -> None:
        """End the lease, and all writing with it. After a lost one only the folder of this machine is released."""
        try:
            self._lease.end()
        except ClaimLost:
            pass
        except OSError as error:
            log.warning("The next engine waits until this one's claim has run out: %s", error)
        self._local.clear(SUFFIX)
        self._local.release()

    def force_names(self) -> None:
        """Delete the store's objects of closed sessions, which its head no longer names."""
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
    """Return the name of a file in one folder. Raises OSError for another: the head may come from anyone."""
    if Path(name).name != name or not name.endswith(SUFFIX) or name == SUFFIX:
        raise OSError(f"its head names {name!r}, which is no file of a journal")
    return name
