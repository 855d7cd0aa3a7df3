"""Find the engines that run on this machine, from the entries they wrote. Starts nothing.

Entries of other hosts (on a shared NFS home) are ignored and never touched. An entry of this host whose process has
gone is removed, with its sockets. Files of a living process are left alone: a process that is not visible from here
(in another container, with the same host name) is recognized by the lock it holds.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from djinn_jupyter.errors import EngineUnavailable, MalformedMessage, UsageError
from djinn_jupyter.wire.host import boot_id, host_name, process_mark, require_supported_platform
from djinn_jupyter.wire.own import make_own_folder, open_own, read_own, require_own_folder
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, FOLDER, LIFE_SUFFIX, SOCKET_FOLDER_PREFIX, Entry, decode_entry

log = logging.getLogger(__name__)


def registry_folder() -> Path:
    """Return the folder of entries, locks and logs, creating it if missing. UsageError where it is not private to this
    user."""
    require_supported_platform()
    return make_own_folder(Path(jupyter_runtime_dir()) / FOLDER)


def running_engines() -> tuple[Entry, ...]:
    """Return the entries of the engines alive on this host, oldest first. Entries of dead engines are removed."""
    return tuple(entry for entry in Registry().look() if entry.host == host_name())


class Registry:
    """All entries of one kind, including those of other hosts. A file is read again only when it has changed, so that a
    look once a second costs little."""

    def __init__(self, suffix: str = ENTRY_SUFFIX) -> None:
        self._suffix = suffix
        self._read: dict[Path, tuple[tuple[int, int], Entry | None]] = {}

    def look(self) -> tuple[Entry, ...]:
        """Return the live engines of this host and, unchecked, those of other hosts, oldest first. Remove the files of
        dead engines of this host."""
        paths = sorted(registry_folder().glob(f"*{self._suffix}"))
        self._read = {path: self._entry(path) for path in paths}
        found: list[Entry] = []
        for path, (_, entry) in self._read.items():
            if entry is None:
                continue
            if entry.host != host_name() or is_alive(entry):
                found.append(entry)
            elif not _is_held(path.with_name(entry.file_stem() + LIFE_SUFFIX)):
                clear_away(path, entry)
        return tuple(sorted(found, key=lambda entry: entry.started))

    def _entry(self, path: Path) -> tuple[tuple[int, int], Entry | None]:
        try:
            status = path.stat()
        except FileNotFoundError:
            return (0, 0), None
        stamp = status.st_mtime_ns, status.st_ino
        known = self._read.get(path)
        return known if known is not None and known[0] == stamp else (stamp, read_entry(path))


def read_entry(path: Path) -> Entry | None:
    """Read an entry. Return None when it has just been removed, or cannot be read or trusted (which is logged)."""
    try:
        return decode_entry(read_own(path))
    except FileNotFoundError:
        return None
    except (OSError, MalformedMessage, UsageError) as error:
        log.warning("The registry entry %s is not readable: %s", path.name, error)
        return None


def is_alive(entry: Entry) -> bool:
    """Return True while the process that wrote the entry runs; a zombie does not count."""
    return entry.boot == boot_id() and process_mark(entry.pid) == entry.mark


def require_own_sockets(entry: Entry) -> None:
    """Raise EngineUnavailable where the folder of an engine's sockets has gone, or is not private to this user."""
    folder = entry.socket_folder()
    if folder is None:
        return  # over TCP the keys authenticate the engine
    again = "end it with `djinn stop --force` and load again, and what it kept of its sessions comes back"
    try:
        require_own_folder(Path(folder), again)
    except FileNotFoundError:
        raise EngineUnavailable(
            f"The engine of {entry.identity} (process {entry.pid}) cannot be reached: the folder of its sockets, "
            f"{folder}, was deleted; {again}."
        ) from None
    except UsageError as error:
        raise EngineUnavailable(f"The engine of {entry.identity} is not spoken to: {error}") from None


def clear_away(path: Path, entry: Entry) -> None:
    """Remove the files of a dead engine of this host: the sockets it names, its entry and its life file, no others.
    While a process holds the folder of the sockets all stay for the next look: the locks of a killed engine are freed
    one after the other."""
    folder = entry.socket_folder()
    if (
        folder is not None
        and Path(folder).name.startswith(SOCKET_FOLDER_PREFIX)
        and not _remove_sockets(Path(folder), {Path(entry.commands).name})
    ):
        return
    with suppress(PermissionError):  # the folder may be read-only
        path.unlink(missing_ok=True)
        path.with_name(entry.file_stem() + LIFE_SUFFIX).unlink(missing_ok=True)


def _remove_sockets(folder: Path, names: set[str]) -> bool:
    """Remove the sockets and their folder if the folder is ours. Files other than these sockets stay, and so does the
    folder then. Return False, and remove nothing, while a living process holds the folder."""
    with suppress(OSError, UsageError):
        require_own_folder(folder, "")
        if _is_held(folder):
            return False
        for name in names:
            if stat.S_ISSOCK((folder / name).lstat().st_mode):
                (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()
    return True


def _is_held(path: Path) -> bool:
    """Return True while a living process holds the lock of a file or folder. The lock ends with the process."""
    import fcntl  # not on Windows, where no engine runs

    try:
        descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else open_own(path, os.O_RDONLY)
    except (FileNotFoundError, UsageError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two checks at once do not block each other
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
