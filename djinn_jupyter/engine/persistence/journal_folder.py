"""The folder of one engine's journal: its files, and those that are set aside. How an engine comes to have a folder for
itself is known by `locked_folder` (one machine), `leased_folder` and `store.folder` (several)."""

from __future__ import annotations

import logging
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from djinn_jupyter.engine.persistence.journal_file import Disk, Medium
from djinn_jupyter.fsync import force_names, make_folder
from djinn_jupyter.plain_files import is_plain
from djinn_jupyter.wire.texts import sendable

log = logging.getLogger(__name__)

ASIDE: Final = "aside"
_KINDS: Final = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class JournalFolder(ABC):
    """Invariant: while it is open no other process uses it. Where `forces_first`, what a reply reports is on the disk
    before the reply goes out. `left_out` has the reasons why files of sessions were set aside, by session."""

    forces_first = False

    def __init__(self, folder: Path, medium: Medium | None = None) -> None:
        self.folder, self.medium = folder, medium or Disk()
        self.left_out: dict[str, str] = {}

    @abstractmethod
    def release(self) -> None:
        """Let other engines have the folder, and remove it where nothing is left in it."""

    @abstractmethod
    def require(self) -> None:
        """Raise ClaimLost where the folder is not this engine's any more."""

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

    def put_aside(self, path: Path, why: Exception, session: str | None = None) -> None:
        """Set a file aside, of this `session` where one is known, and log it; one that cannot be moved stays there."""
        if session is not None:
            self.left_out[session] = sendable(str(why))
        try:
            log.warning("A session of the journal is set aside as %s: %s", self.set_aside(path), why)
        except OSError as error:
            said = error.strerror or error
            log.warning("%s cannot be used (%s) nor set aside (%s); it stays where it is", path, why, said)

    def set_aside(self, path: Path) -> str:
        """Move a file where no process uses or deletes it; return its new address. Raises OSError."""
        folder = self.folder.parent / ASIDE
        make_folder(folder)
        target = unused(folder / path.name)
        path.rename(target)
        force_names(folder)
        return str(target)

    def aside(self, suffix: str) -> list[Path]:
        """Return the plain files with that suffix that were set aside, also by engines before."""
        return [path for path in sorted((self.folder.parent / ASIDE).glob(f"*{suffix}")) if is_plain(path)]

    def clear(self, suffix: str) -> None:
        for path in self.files(suffix):
            path.unlink(missing_ok=True)


def unused(path: Path) -> Path:
    """Return the path, or one with a number behind its stem where there is something."""
    number = 0
    while (
        found := path if not number else path.with_name(f"{path.stem}-{number}{path.suffix}")
    ).exists() or found.is_symlink():
        number += 1
    return found


def _kind(path: Path) -> str:
    return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "a device")
