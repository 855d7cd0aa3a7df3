"""An engine's entry in the registry and its private socket folder: made when it answers, removed at its end."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_runtime_dir, secure_write

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.file_stamps import Stamps
from djinn_jupyter.options import Options
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.host import boot_id, host_name, process_mark
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.own import make_own_folder, open_own
from djinn_jupyter.wire.registry import (
    ENTRY_SUFFIX,
    FOLDER,
    LIFE_SUFFIX,
    SOCKET_FOLDER_PREFIX,
    Entry,
    encode_entry,
)

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0  # between two checks of the entry
Stamp = tuple[int, int, int]


def own_mark() -> str:
    mark = process_mark(os.getpid())
    assert mark is not None  # this process runs
    return mark


def make_entry(
    config: EngineConfig,
    found: ModelDescription,
    *,
    commands: str,
    log: str | None,
    listens: str | None,
    quota: str | None,
    metrics: str | None,
    files: Stamps,
) -> Entry:
    """Return the registry entry of this process."""
    return Entry(
        version=__version__,
        protocol=protocol.digest(),
        pid=os.getpid(),
        mark=own_mark(),
        host=host_name(),
        boot=boot_id(),
        started=time.time(),
        identity=config.identity,
        found=dataclasses.replace(
            config.identity,
            model=found.name,
            revision=found.revision,
            dtype=found.dtype,
            device=found.device,
            attention=found.attention,
        ),
        options=Options(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Options)}),
        commands=commands,
        log=log,
        listens=listens,
        quota=quota,
        metrics=metrics,
        files=dict(files),
    )


class HeldLock:
    """A lock on an open file or folder; it ends with this process at the latest. A forked child closes its copy, so
    that no child makes a dead engine look alive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.register_at_fork(after_in_child=self.let_go)

    def is_of(self, path: Path) -> bool:
        """True where `path` still is the locked file."""
        try:
            return self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Registration:
    """The entry's file, readable by its owner only. It appears whole (written aside, then renamed).

    Beside it lies a file that is locked as long as this process lives, so that no process removes a live engine's
    entry.
    """

    def __init__(self, entry: Entry) -> None:
        folder = Path(jupyter_runtime_dir()) / FOLDER
        self._entry = entry
        self.path = folder / f"{entry.file_stem()}{ENTRY_SUFFIX}"
        self._life = folder / f"{entry.file_stem()}{LIFE_SUFFIX}"
        self._looked = time.monotonic()
        self._held = self._hold()
        self._written = self._write()

    def keep(self) -> None:
        """Restore files that are missing or were overwritten. To be called often: it checks every LOOK_SECONDS."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            if not self._held.is_of(self._life):
                self._held.let_go()
                self._held = self._hold()
            if _stamp(self.path) != self._written:
                self._written = self._write()
                log.warning("The entry %s was missing or overwritten and has been put back", self.path)
        except (OSError, DjinnError) as error:
            log.warning("The entry %s cannot be put back: %s", self.path, error)

    def withdraw(self) -> None:
        self.path.unlink(missing_ok=True)
        self._life.unlink(missing_ok=True)
        self._held.let_go()

    def _hold(self) -> HeldLock:
        make_own_folder(self._life.parent)
        return HeldLock(open_own(self._life, os.O_RDWR | os.O_CREAT))

    def _write(self) -> Stamp | None:
        make_own_folder(self.path.parent)
        aside = self.path.with_suffix(".part")
        with secure_write(str(aside)) as file:
            file.write(encode_entry(self._entry).decode())
        aside.replace(self.path)
        return _stamp(self.path)


def _stamp(path: Path) -> Stamp | None:
    """Return a stamp that changes when another process writes the file; None where there is no file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class SocketFolder:
    """A folder of mode 0700 with a path short enough for Unix sockets (at most 103 bytes on macOS). It is locked while
    in use: systemd's cleaning of /tmp skips locked folders, as djinn's own does."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > 70:
            parent = "/tmp"
        self.path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX, dir=parent))
        self._held = HeldLock(os.open(self.path, os.O_RDONLY))

    def endpoint(self, name: str) -> str:
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.let_go()
