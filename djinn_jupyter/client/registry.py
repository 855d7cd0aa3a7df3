"""Which engines run on this machine, read from the entries they wrote. Starts nothing.

Entries of other hosts (an NFS home is shared) are ignored and never touched. An entry of this host whose process has
gone is removed, with the folder of its sockets.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import psutil
from jupyter_core.paths import jupyter_runtime_dir
from jupyter_core.utils import ensure_dir_exists

from djinn_jupyter.errors import MalformedMessage
from djinn_jupyter.wire.host import boot_id, host_name
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, FOLDER, Entry, decode_entry

log = logging.getLogger(__name__)

CREATE_TIME_TOLERANCE = 2.0  # seconds; the boot time, from which the create time is computed, is corrected by NTP


def registry_folder() -> Path:
    """The folder of entries, locks and logs, made when it is missing; readable by its owner only."""
    folder = Path(jupyter_runtime_dir()) / FOLDER
    ensure_dir_exists(str(folder), mode=0o700)
    return folder


def running_engines() -> tuple[Entry, ...]:
    """Entries of the engines that are alive on this host, oldest first. Entries of the dead are removed."""
    return tuple(entry for entry in Registry().look() if entry.host == host_name())


class Registry:
    """The entries, also those of other hosts, read again only where a file has changed: to look once a second costs
    little."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, int], Entry | None]] = {}

    def look(self) -> tuple[Entry, ...]:
        """Engines of this host that are alive and, unproven, those of other hosts, oldest first. What dead engines of
        this host left is removed."""
        paths = sorted(registry_folder().glob(f"*{ENTRY_SUFFIX}"))
        self._read = {path: self._entry(path) for path in paths}
        found: list[Entry] = []
        for path, (_, entry) in self._read.items():
            if entry is None:
                continue
            if entry.host != host_name() or is_alive(entry):
                found.append(entry)
            else:
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
    """None when it has just been removed, or is not readable (which is logged)."""
    try:
        return decode_entry(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, MalformedMessage) as error:
        log.warning("The registry entry %s is not readable: %s", path.name, error)
        return None


def is_alive(entry: Entry) -> bool:
    """Whether the process that wrote the entry still runs. A zombie does not."""
    if entry.boot != boot_id():
        return False
    try:
        process = psutil.Process(entry.pid)
        if abs(process.create_time() - entry.created) > CREATE_TIME_TOLERANCE:
            return False
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def clear_away(path: Path, entry: Entry) -> None:
    """Remove what a dead engine of this host left."""
    path.unlink(missing_ok=True)
    folder = Path(entry.commands.removeprefix("ipc://")).parent
    if entry.commands.startswith("ipc://") and folder.name.startswith("djinn-") and _is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid()
