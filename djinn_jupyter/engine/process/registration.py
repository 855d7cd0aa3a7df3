"""An engine's entry in the registry and its private socket folder: made when it answers, removed at its end."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from jupyter_core.paths import jupyter_runtime_dir, secure_write

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.files import Stamps
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire import protocol, registry
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.own import boot_id, host_name, make_own_folder, open_own, process_mark

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
) -> registry.Entry:
    """Return the registry entry of this process."""
    return registry.Entry(
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

    def __init__(self, entry: registry.Entry) -> None:
        folder = Path(jupyter_runtime_dir()) / registry.FOLDER
        self._entry = entry
        self.path = folder / f"{entry.file_stem()}{registry.ENTRY_SUFFIX}"
        self._life = folder / f"{entry.file_stem()}{registry.LIFE_SUFFIX}"
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
            file.write(registry.encode_entry(self._entry).decode())
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
        self.path = Path(tempfile.mkdtemp(prefix=registry.SOCKET_FOLDER_PREFIX, dir=parent))
        self._held = HeldLock(os.open(self.path, os.O_RDONLY))

    def endpoint(self, name: str) -> str:
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.let_go()


# The pipe to the launcher of this engine: its progress, then that it is ready or why it cannot start. Also keeps the
# launcher's lock open until the engine is in the registry: if the launcher dies meanwhile, the next one waits for this
# engine instead of starting a second.


class LauncherPipe:
    """Writes notices while the launcher reads. A launcher that has gone, or a missing one (None), is no error."""

    def __init__(self, descriptor: int | None, *, lock: int | None = None) -> None:
        self._descriptor, self._lock = descriptor, lock
        for inherited in (descriptor, lock):
            if inherited is not None:
                os.set_inheritable(inherited, False)

    def send(self, notice: registry.Notice) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, registry.encode_notice(notice))
        except BrokenPipeError:
            self._close_pipe()

    def ready(self, entry: registry.Entry) -> None:
        """Send the last notice, once every client can find the entry; release the lock and close the pipe."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.send(registry.Ready(entry=entry))
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def end_with_parent(descriptor: int) -> None:
    """Send this process SIGTERM, on which an engine ends in order, once the other end of the pipe is closed."""
    threading.Thread(target=_wait, args=(descriptor,), name="djinn-parent", daemon=True).start()


def _wait(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    log.info("The process that started this engine has gone, or ends it")
    os.kill(os.getpid(), signal.SIGTERM)


# Restart of a broken engine: the process executes its own command line again, with the same pid, log and options, and
# recovers its sessions as after a crash. At most MOST times in PERIOD_SECONDS; a lock keeps out a second engine.

MOST: Final = 3
PERIOD_SECONDS: Final = 3600.0
LOCK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_OF_THE_FIRST_START: Final = ("--launcher-pipe", "--launcher-lock", "--restarted-at")


class Restarts:
    """`before` are the times of this process's restarts, by the monotonic clock, which all processes of a machine share
    and which is never set back."""

    def __init__(self, before: Sequence[float] = ()) -> None:
        self._recent = [at for at in before if time.monotonic() - at < PERIOD_SECONDS]
        self._lock: int | None = None

    @property
    def allowed(self) -> bool:
        return len(self._recent) < MOST

    def hold_lock(self, identity: Identity) -> None:
        """Take the launch lock: clients that load the model from now on wait for the restarted engine, as for one that
        another client starts. Called while the old entry can still be found."""
        path = Path(jupyter_runtime_dir()) / registry.FOLDER / f"{identity.slug()}{registry.LOCK_SUFFIX}"
        try:
            lock = open_own(path, os.O_RDWR | os.O_CREAT)
        except (OSError, UsageError) as error:
            log.warning("A second engine of the model may start: %s", error)
            return
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    log.warning("Another process is loading the model just now; a second engine of it may start")
                    os.close(lock)
                    return
            time.sleep(_LOOK_SECONDS)

    def begin(self) -> NoReturn:
        """Restart: this process becomes the new engine. Does not return."""
        options = [f"--restarted-at={at}" for at in (*self._recent, time.monotonic())]
        if self._lock is not None:
            os.set_inheritable(self._lock, True)
            options.append(f"--launcher-lock={self._lock}")
        logging.shutdown()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *_without(sys.orig_argv[1:], _OF_THE_FIRST_START), *options])


def _without(arguments: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without these options and their values."""
    value_follows = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not value_follows and name not in options:
            yield argument
        value_follows = not value_follows and name in options and not equals
