"""An engine's persistence: its folders, the model's identity, and the thread that works on the files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import torch
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import RunningTime
from djinn_jupyter.engine.store import adopted
from djinn_jupyter.engine.store.checkpoint_files import CheckpointFolder, FileWorker
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.journal import ROUNDS, Journal
from djinn_jupyter.engine.store.journal_file import SUFFIX
from djinn_jupyter.engine.store.locked_folder import take_folder
from djinn_jupyter.engine.store.session_store import SessionStore
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.remote.engine.checkpoint_store import CheckpointStore, MoveStore, is_store
from djinn_jupyter.remote.engine.lease import take_leased_folder
from djinn_jupyter.remote.engine.move_folder import MoveFolder, MovePlaces
from djinn_jupyter.remote.engine.object_store import take_stored_folder
from djinn_jupyter.remote.engine.objects import Objects, S3Store
from djinn_jupyter.remote.engine.running_times import RunningTimesFile
from djinn_jupyter.wire.own import ELSEWHERE, host_name

FOLDER: Final = "djinn"
CHECKPOINTS: Final = "checkpoints"
JOURNALS: Final = "journals"
MOVES: Final = "moves"
OF_STORES: Final = "journals-of-stores"  # the files of journals whose truth is in a store

Until = Callable[[Future[Any]], Generator[Blocked | None, None, Any]]


def data_folder() -> Path:
    """Return the folder of this user's journals, checkpoints and moves."""
    return Path(jupyter_data_dir()) / FOLDER


class Persistence:
    """`checkpoints` may be used from any thread; jobs of the engine use `file_worker`. `journal` is set once the engine
    has adopted what earlier processes left; with `forgets` its files are deleted at the end."""

    def __init__(self, config: EngineConfig, identity: ModelIdentity, device: torch.device) -> None:
        folder = config.data_folder or data_folder()
        self.identity, self._device = identity, device
        self._store = config.shared_journal if is_store(config.shared_journal) else None
        mounted = None if self._store or config.shared_journal is None else Path(config.shared_journal)
        shared = mounted or folder
        self.checkpoints = _checkpoints(config, folder, shared, identity, device)
        self.moves = MovePlaces(
            None if self._store else MoveFolder(shared / MOVES, identity, device),
            tuple(filter(None, (f"{self._store}/{MOVES}" if self._store else None, config.moves))),
            lambda address: MoveStore.at(address, folder / MOVES, identity, device),
        )
        self.file_worker = FileWorker("djinn-checkpoints")
        self.journal: Journal | None = None
        self._times: RunningTimesFile | None = None
        self.forgets = False
        self._shared = mounted is not None
        self._journals = mounted or folder / (OF_STORES if self._store else JOURNALS)

    def open_journal(self, slug: str, wake: Callable[[], None]) -> Journal:
        """Return the journal of this engine, with what earlier processes of its kind left. Raises StorageFailed, and
        ClaimLost where another engine claims a shared one meanwhile."""
        place = self._store or self._journals
        try:
            store = self._take_store(self._journals / slug, wake)
        except OSError as error:
            raise StorageFailed(
                f"No journal can be kept in {place} ({error.strerror or error}): make room there, {ELSEWHERE}, or "
                "start the engine with --no-journal (in Python no_journal=True): then its sessions end with it."
            ) from error
        return Journal(store, self.identity, self._device, wake)

    def _take_store(self, root: Path, wake: Callable[[], None]) -> SessionStore:
        if self._store is not None:
            return take_stored_folder(S3Store(f"{self._store}/{root.name}"), root, adopted.SUFFIX, wake)
        if self._shared:
            return take_leased_folder(root, SUFFIX, adopted.SUFFIX, wake)
        return take_folder(root, host_name(), SUFFIX, adopted.SUFFIX)

    def require_claim(self) -> None:
        """Raise ClaimLost where another engine has a shared journal by now: this one may answer nothing more."""
        if self.journal is not None:
            self.journal.store.require()

    def write_to(self, journal: Journal, running_time: RunningTime) -> None:
        """Write every session to this journal from now on, and people's running time beside it, continuing an earlier
        one."""
        self.journal = journal
        self._times = RunningTimesFile(journal.store.folder, running_time)

    @property
    def trouble(self) -> str | None:
        """The journal's problem in words for the user (it cannot be written, why, and what that means), or None."""
        return None if self.journal is None else self.journal.trouble

    def left_out(self, session: str) -> str | None:
        """Return why a session of an earlier engine was set aside; None where none was."""
        return None if self.journal is None else self.journal.store.left_out.get(session)

    def touch(self, session: str) -> None:
        if self.journal is not None:
            self.journal.touch(session)

    def forget(self, session: str) -> None:
        if self.journal is not None:
            self.journal.forget(session)

    @property
    def unkept(self) -> frozenset[str]:
        """Sessions whose last state is not in the journal, so that it is lost if the process dies."""
        return frozenset() if self.journal is None else self.journal.unkept

    def forget_all(self) -> None:
        """Delete the journal at the end; may be called from any thread."""
        self.forgets = True

    def write(self, sessions: Mapping[str, Session], names: Iterable[str]) -> None:
        """Write these sessions, before a reply reports their state."""
        if self.journal is not None:
            self.journal.write(sessions, names)

    def forced(
        self, sessions: Mapping[str, Session], name: str, until_done: Until
    ) -> Generator[Blocked | None, None, None]:
        """Yield until the disk has the present state of a session, or its closing. Raises StorageFailed."""
        if self.journal is None:
            return
        if name in sessions:
            self.journal.touch(name)
        self.journal.put(sessions, (name,))
        for _ in range(ROUNDS):
            yield from until_done(self.journal.begin_force())
            self.journal.settle_forced()
        if name in self.journal.unkept:
            raise StorageFailed(str(self.journal.trouble))

    def attend(self, sessions: Mapping[str, Session], *, idle: bool = False) -> None:
        """Write what is due, after each slice of work."""
        if self.journal is not None:
            self.journal.attend(sessions, idle=idle)
        if self._times is not None:
            self._times.attend()

    def close(self, sessions: Mapping[str, Session]) -> None:
        """Return when all files are in their final state."""
        self.file_worker.close()
        if self._times is not None:
            self._times.write()
            self._times = None
        if self.journal is not None:
            self.journal.close(sessions, forget=self.forgets)
            self.journal = None

    def abandon(self) -> None:
        """Close like `close`, but write nothing more."""
        self.file_worker.close()
        self._times = None
        if self.journal is not None:
            self.journal.abandon()
            self.journal = None


def _checkpoints(
    config: EngineConfig, folder: Path, shared: Path, identity: ModelIdentity, device: torch.device
) -> CheckpointFolder:
    """Return the place of checkpoints: the requested one, or beside a journal in a store."""
    asked = config.checkpoints
    if asked is None and is_store(config.shared_journal):
        asked = f"{config.shared_journal}/{CHECKPOINTS}"
    if asked is not None and is_store(asked):
        return CheckpointStore(Objects.at(asked), folder / CHECKPOINTS, identity, device)
    return CheckpointFolder(shared / CHECKPOINTS if asked is None else Path(asked), identity, device)
