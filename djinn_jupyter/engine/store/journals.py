"""The journals of this machine's engines on the disk: list, delete and move sessions that no engine has.

A folder that an engine locks is only read. While a command deletes or moves, it holds the locks itself, so that no
engine starts with half a journal.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from djinn_jupyter.engine.store.adopted import SUFFIX as PAGES
from djinn_jupyter.engine.store.journal_file import ASIDE, SUFFIX, by_session, session_in
from djinn_jupyter.engine.store.locked_folder import LOCK, LockedFolder, lock_folder
from djinn_jupyter.engine.store.persistence import FOLDER, JOURNALS, data_folder
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.files import force_names, is_plain, make_folder, told_of_disk
from djinn_jupyter.wire.own import host_name

_OF_SESSIONS = re.compile(rf".+-\d+|{ASIDE}")
Whose = Literal["in use", "at rest", "set aside", "another host's"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSession:
    """A session in a journal: its engine's folder name, its own name (None where no image is readable), its files,
    oldest first, their bytes, and when it was last written, in seconds since the epoch."""

    engine: str
    name: str | None
    whose: Whose
    files: tuple[Path, ...]
    nbytes: int
    written: float


def journals_folder() -> Path:
    """Return the folder with the journals of this user's engines."""
    return data_folder() / JOURNALS


def kept_sessions(root: Path) -> list[KeptSession]:
    """Return the sessions in the journals of a folder, by engine, the last written first."""
    found = [one for folder in _folders(root) for one in _in(folder)]
    return sorted(found, key=lambda one: (one.engine, -one.written))


def _folders(root: Path) -> list[Path]:
    """Return the folders of sessions; beside them are other files of the engines."""
    return sorted(path for engine in _entries(root) for path in _entries(engine) if _OF_SESSIONS.fullmatch(path.name))


def _entries(folder: Path) -> list[Path]:
    there = folder.iterdir() if folder.is_dir() else ()
    return [path for path in there if path.is_dir() and not path.is_symlink()]  # what a link leads to is another's


def _in(folder: Path) -> Iterator[KeptSession]:
    whose = _whose(folder)
    for files in by_session(path for path in sorted(folder.glob(f"*{SUFFIX}")) if is_plain(path)):
        found = [path.stat() for path in files]
        yield KeptSession(
            engine=folder.parent.name,
            name=next(filter(None, map(session_in, files)), None),
            whose=whose,
            files=tuple(reversed(files)),
            nbytes=sum(one.st_size for one in found),
            written=max(one.st_mtime for one in found),
        )


def _whose(folder: Path) -> Whose:
    if folder.name == ASIDE:
        return "set aside"
    if not folder.name.startswith(f"{host_name()}-"):
        return "another host's"
    locked = lock_folder(folder) if (folder / LOCK).exists() else None
    if locked is None:
        return "in use" if (folder / LOCK).exists() else "at rest"
    locked.release()
    return "at rest"


def delete(sessions: Sequence[KeptSession]) -> None:
    """Delete sessions that no engine has, and the pages of folders without sessions. UsageError for others, with
    nothing deleted."""
    with _locked({path.parent for one in sessions for path in one.files}) as folders:
        for path in (path for one in sessions for path in one.files):
            path.unlink(missing_ok=True)
        for folder in folders:
            if not folder.files(SUFFIX):
                folder.clear(PAGES)
            folder.force_names()


@contextmanager
def _locked(folders: set[Path]) -> Iterator[list[LockedFolder]]:
    """Hold the locks of folders. UsageError where an engine, of this host or another, may have one."""
    with ExitStack() as held:
        yield [one for folder in sorted(folders) if (one := _lock(folder, held)) is not None]


def _lock(folder: Path, held: ExitStack) -> LockedFolder | None:
    """Lock a folder of this host; files that are set aside are no engine's."""
    if folder.name == ASIDE:
        return None
    if not folder.name.startswith(f"{host_name()}-"):
        raise UsageError(f"The journal {folder} is of another host: run the command there.")
    locked = lock_folder(folder)
    if locked is None:
        raise UsageError(
            f"An engine runs with the journal of {folder.parent.name}: close sessions there (%djinn_close), or end it "
            "first (djinn stop)."
        )
    held.callback(locked.release)
    return locked


def move(root: Path, target: Path) -> Path:
    """Move all journals to a new folder, and leave a link to it, by which engines go on there. Return that folder.
    UsageError while an engine runs with one of them; StorageFailed, with all as before, where they cannot be copied."""
    before, there = root.resolve(), target.resolve() / FOLDER / JOURNALS
    if there.exists():
        raise UsageError(f"{there} exists already: choose another folder.")
    if there.is_relative_to(before):
        raise UsageError(f"{there} is within the journals themselves: choose another folder.")
    folders = _folders(before)
    with _locked({path for path in folders if path.name != ASIDE}):
        try:
            _copy(before, there)
            old = _link(root, there, folders)
        except BaseException as error:
            shutil.rmtree(there, ignore_errors=True)
            if not isinstance(error, OSError):  # shutil's errors are
                raise
            why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error  # the first file's
            raise StorageFailed(f"The journals stay in {before}: they cannot be moved to {there} ({why}).") from error
        with told_of_disk(f"The journals are in {there} now, but {root} could not be flushed", f"{old} stays."):
            force_names(root.parent)
    shutil.rmtree(old, ignore_errors=True)
    return there


def _copy(before: Path, there: Path) -> None:
    make_folder(there.parent)
    if before.is_dir():
        shutil.copytree(before, there, ignore=shutil.ignore_patterns(LOCK))
    else:
        make_folder(there)
    os.sync()


def _link(root: Path, there: Path, folders: Sequence[Path]) -> Path:
    """Put a link in place of the journals; return where they are now. They stay where that fails; UsageError where an
    engine has begun another one meanwhile."""
    make_folder(root.parent)
    old, link = root.with_name(f"{root.name}-before"), root.with_name(f"{root.name}-link")
    link.unlink(missing_ok=True)
    link.symlink_to(there, target_is_directory=True)
    try:
        if root.is_symlink() or not root.exists():
            old = root.resolve()
            link.replace(root)
        else:
            _replace(root, old, link, len(folders))
    finally:
        link.unlink(missing_ok=True)
    return old


def _replace(root: Path, old: Path, link: Path, folders: int) -> None:
    """Put a link in place of a folder with so many `folders` of sessions, which becomes `old`."""
    root.rename(old)
    try:
        if len(_folders(old)) != folders:
            raise UsageError("An engine has started meanwhile: end it first (djinn stop), and move the journals again.")
        link.replace(root)
    except BaseException:
        old.rename(root)
        raise
