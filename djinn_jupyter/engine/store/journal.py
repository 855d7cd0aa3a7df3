"""The journal: images of all sessions in files, so that every session survives the process. Before a reply goes out,
the state that it reports has been written to the system: the death of the process loses none of it. A running session
is also written four times a second. A thread forces to the disk what was written, at once where the session is at rest
and every few seconds where it runs: a loss of power loses what was not yet forced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import msgspec
import torch

from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.adopted import KeptPages
from djinn_jupyter.engine.store.checkpoint_files import FileWorker
from djinn_jupyter.engine.store.dump import DumpedFrames, dump_session
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.session_store import ImageSource, LeftBehind, SessionStore, StoredSession
from djinn_jupyter.errors import CheckpointRefused

log = logging.getLogger(__name__)


class ClosedFiles:
    """Used on the engine's thread. With `forces_first`, the thread of the journal deletes, because that may take long;
    `settle` reports what it has done. `lingering` are those that could not be deleted."""

    def __init__(self, store: SessionStore, thread: FileWorker) -> None:
        self._store, self._thread = store, thread
        self._under_way: list[tuple[str, StoredSession, Future[None]]] = []
        self._removed: SimpleQueue[StoredSession] = SimpleQueue()
        self.lingering: dict[str, StoredSession] = {}

    def remove(self, name: str, files: StoredSession) -> None:
        if self._store.forces_first:
            self._under_way.append((name, files, self._thread.start(files.remove)))
            return
        try:
            files.remove()
        except OSError as error:
            self._linger(name, files, error)
        else:
            self._close(name, files)

    def remove_again(self) -> None:
        """Retry the deletions that failed."""
        for name, files in tuple(self.lingering.items()):
            if all(files is not other for _, other, _ in self._under_way):
                self.remove(name, files)

    def settle(self) -> bool:
        """Record the thread's deletions. Return whether it had any."""
        under_way, self._under_way = self._under_way, []
        for name, files, removal in under_way:
            if not removal.done():
                self._under_way.append((name, files, removal))
            elif (error := removal.exception()) is not None:
                self._linger(name, files, error)
            else:
                self._close(name, files)
        return bool(under_way)

    def _linger(self, name: str, files: StoredSession, error: BaseException) -> None:
        if not isinstance(error, OSError):
            raise error
        if name not in self.lingering:
            log.warning("The closed session %r may come back: %s", name, error.strerror or error)
        self.lingering[name] = files

    def _close(self, name: str, files: StoredSession) -> None:
        if self.lingering.get(name) is files:
            del self.lingering[name]
        self._removed.put(files)
        self._thread.start(self._close_removed)

    def _close_removed(self) -> None:
        """Close all removed files, and flush their deletion at once: a batch that ends closes many sessions."""
        removed = [self._removed.get() for _ in range(self._removed.qsize())]
        if not removed:
            return
        for files in removed:
            files.close()
        try:
            self._store.force_names()
        except OSError as error:
            log.warning("A closed session may come back after a loss of power: %s", error.strerror or error)


RUNNING_SECONDS: Final = 0.25
RUNNING_TAKE_ONE_IN: Final = 100  # parts of the engine's time: images of a batch's 32 rows took one in 25
FORCE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0
ROUNDS: Final = 2


@dataclass(slots=True, kw_only=True)
class _Account:
    """Journal accounting of one session: its stored parts, when its next image is due while it runs (None: it does not)
    or has trouble, and when that is flushed."""

    stored: StoredSession
    frames: DumpedFrames = field(default_factory=DumpedFrames)  # of the last image
    due: float | None = None
    force_due: float = 0.0
    forcing: Future[None] | None = None  # under way
    unforced: bool = False  # written since `forcing` began, and to be flushed next
    names_places: bool = False  # the last image names pages in another file
    unwritten: str | None = None  # why the last image could not be written
    refused: str | None = None  # why the written data could not be flushed to the disk

    @property
    def trouble(self) -> str | None:
        return self.unwritten or self.refused


@dataclass(slots=True, kw_only=True)
class JournalStatistics:
    """Images written since the start, and the seconds of the engine's thread that they took."""

    images: int = 0
    seconds: float = 0.0


class Journal:
    """Used on the engine's thread. `wake` is called after a flush, on the flushing thread."""

    def __init__(
        self, store: SessionStore, model: ModelIdentity, device: torch.device, wake: Callable[[], None]
    ) -> None:
        self.store, self._wake = store, wake
        self.source = ImageSource(model, device)
        self._thread = FileWorker("djinn-journal")
        self._accounts: dict[str, _Account] = {}
        self._touched: set[str] = set()
        self._unforced: set[str] = set()
        self._closed = ClosedFiles(store, self._thread)
        self._ended: SimpleQueue[str] = SimpleQueue()
        self.statistics = JournalStatistics()
        self.pages: KeptPages | None = None  # images name the places of rows in their file
        self._next_running = 0.0
        self.trouble: str | None = None

    @property
    def unkept(self) -> frozenset[str]:
        """Sessions whose last state is not in the journal, and closed ones that are still in it."""
        if self.trouble is None:
            return frozenset()
        troubled = {name for name, account in self._accounts.items() if account.trouble is not None}
        return frozenset(troubled | self._closed.lingering.keys())

    def adopt(self, session: str, found: LeftBehind) -> None:
        """Continue a recovered session. Flushes the found files, which their writer may not have done."""
        self._accounts[session] = _Account(stored=found.stored)
        self._force(session, self._accounts[session])

    def touch(self, session: str) -> None:
        """Record that the session may differ from its last image."""
        self._touched.add(session)

    def write(self, sessions: Mapping[str, Session], names: Iterable[str]) -> None:
        """Return when the system has the present state of these sessions, or the reason why not is known (`unkept`). In
        a shared folder the disk has it too, and closed sessions are gone from it."""
        changed = tuple(names)
        self.put(sessions, changed)
        if changed and self.store.forces_first:
            self.force_now()

    def put(self, sessions: Mapping[str, Session], names: Iterable[str]) -> None:
        """Write these sessions, and leave the flush to the thread."""
        for name in names:
            if name in self._touched and name in sessions:
                self._write(sessions[name])

    def attend(self, sessions: Mapping[str, Session], *, idle: bool = False) -> None:
        """Write the touched sessions that are due, among running ones the longest due; with `idle`, also compact files
        that are mostly unreferenced."""
        now = time.monotonic()
        self.settle_forced()
        self._touched.intersection_update(sessions)
        due = [sessions[name] for name in self._touched if self._is_due(sessions[name], now)]
        for session in due:
            if session.state != "running":
                self._write(session)
        running = [session for session in due if session.state == "running"]
        if running and now >= self._next_running:
            self._write(min(running, key=self._due_since))
            self._next_running = time.monotonic() + RUNNING_TAKE_ONE_IN * (time.monotonic() - now)
        if self._closed.lingering:
            self._closed.remove_again()
            self._tell()
        if idle:
            self._compact(sessions)
        self._force_what_was_written()

    def forget(self, session: str) -> None:
        """Delete a closed session's files, so that it does not return."""
        self._touched.discard(session)
        account = self._accounts.pop(session, None)
        if account is not None:
            self._closed.remove(session, account.stored)
            self._tell()

    def _is_due(self, session: Session, now: float) -> bool:
        """True for a session at rest at once (after trouble: when its retry is due), for a running one RUNNING_SECONDS
        after it was first seen running, or after its last image."""
        account = self._accounts.get(session.name)
        if session.state != "running":
            return account is None or account.trouble is None or now >= (account.due or 0.0)
        if account is None:
            return True
        if account.due is None:
            account.due = now + RUNNING_SECONDS
            return False
        return now >= account.due

    def _due_since(self, session: Session) -> float:
        account = self._accounts.get(session.name)
        return 0.0 if account is None or account.due is None else account.due

    def _write(self, session: Session, *, compact: bool = False) -> None:
        begun = time.monotonic()
        account = self._accounts.get(session.name) or self._new(session.name)
        self._touched.discard(session.name)
        running = session.state == "running"
        account.due = begun + RUNNING_SECONDS if running else None  # also where it is refused: others have their turn
        try:
            image = self._image(session, account)
            account.stored.write(image, compact=compact)
        except CheckpointRefused as refused:
            self._has_trouble(session.name, account, unwritten=str(refused))
            return
        except Exception as error:  # noqa: BLE001  any error that prevents an image is reported
            self._has_trouble(session.name, account, unwritten=_reason(error))
            self._again(session.name, account)
            return
        if account.unwritten is not None:
            account.unwritten = None
            self._tell()
        account.names_places = image.places is not None
        if not running or self.store.forces_first or begun >= account.force_due:
            account.force_due = begun + FORCE_SECONDS
            account.unforced = True
            self._unforced.add(session.name)
        self.statistics.images += 1
        self.statistics.seconds += time.monotonic() - begun

    def _image(self, session: Session, account: _Account) -> SessionImage:
        image = dump_session(session, None, account.frames)
        places = None if self.pages is None else self.pages.places_of(session, image)
        return msgspec.structs.replace(image, places=places)

    def _compact(self, sessions: Mapping[str, Session]) -> None:
        for name, account in self._accounts.items():
            if account.stored.wasteful and account.trouble is None and name in sessions:
                self._write(sessions[name], compact=True)

    def _new(self, name: str) -> _Account:
        return self._accounts.setdefault(name, _Account(stored=self.store.begin(self.source)))

    def _force_what_was_written(self) -> None:
        """Let the thread flush the written data; a session being flushed is flushed once more afterwards."""
        for name in tuple(self._unforced):
            self._unforced.discard(name)
            account = self._accounts.get(name)
            if account is not None and account.unforced and account.forcing is None:
                self._force(name, account)

    def force_now(self) -> None:
        """Return when the thread has flushed the written data, or the reason why not is known."""
        for _ in range(ROUNDS):
            self.begin_force().result()
            self.settle_forced()

    def begin_force(self) -> Future[None]:
        """Let the thread flush the written data; the future is done when it has. A flush in progress may be of an image
        before the last one, which the next of ROUNDS flushes."""
        self._force_what_was_written()
        return self._thread.start(lambda: None)

    def settle_forced(self) -> None:
        """Record the thread's flushes and deletions."""
        while not self._ended.empty():
            self._settle(self._ended.get())
        if self._closed.settle():
            self._tell()

    def _force(self, name: str, account: _Account) -> None:
        account.unforced = False
        stored, pages = account.stored, self.pages if account.names_places else None
        account.forcing = self._thread.start(lambda: _force(stored, pages))
        account.forcing.add_done_callback(lambda _: self._through(name))

    def _through(self, session: str) -> None:
        self._ended.put(session)
        self._wake()

    def _settle(self, name: str) -> None:
        """Handle the result of flushing a session. After a failure the disk's content is unknown: write all again."""
        account = self._accounts.get(name)
        if account is None or account.forcing is None or not account.forcing.done():
            return
        error, account.forcing = account.forcing.exception(), None
        if error is not None:
            account.stored.begin_anew()
            self._has_trouble(name, account, refused=_reason(error))
            self._again(name, account)
            return
        if account.refused is not None:
            account.refused = None
            self._tell()
        if account.unforced:
            self._unforced.add(name)

    def _has_trouble(
        self, name: str, account: _Account, *, unwritten: str | None = None, refused: str | None = None
    ) -> None:
        before = account.trouble
        account.unwritten, account.refused = unwritten or account.unwritten, refused or account.refused
        if account.trouble != before:
            log.warning("The journal of session %r could not be written: %s", name, account.trouble)
        self._tell()

    def _again(self, name: str, account: _Account) -> None:
        account.due = time.monotonic() + RETRY_SECONDS
        self._touched.add(name)

    def _tell(self) -> None:
        """Update `trouble`, the message for the user."""
        troubled = {name: account.trouble for name, account in self._accounts.items() if account.trouble is not None}
        self.trouble = _sentence(troubled) if troubled else _may_come_back(self._closed.lingering)

    def close(self, sessions: Mapping[str, Session], *, forget: bool) -> None:
        """Write the last images of all sessions, or delete all of their files, and return when that is flushed."""
        for name in tuple(self._accounts) if forget else ():
            self.forget(name)
        for name in () if forget else tuple(self._touched | self.unkept):
            if name in sessions:
                self._write(sessions[name])
        self.force_now()
        if self.trouble is not None:
            log.error("%s", self.trouble)
        self._thread.close()
        self._release()
        if self.pages is not None and (forget or not sessions):
            self.pages.remove()
        self.store.release()

    def abandon(self) -> None:
        """Return when the written data is flushed. The files stay for the next engine."""
        self._thread.close()
        self._release()
        self.store.release()

    def _release(self) -> None:
        """Close the files that stay, and release the tensors of the last images."""
        for account in self._accounts.values():
            account.stored.close()
        self._accounts.clear()


def _force(stored: StoredSession, pages: KeptPages | None) -> None:
    """Flush pages first, so that an image on the disk is true of them."""
    if pages is not None:
        pages.sync()
    stored.force()


def _sentence(troubled: Mapping[str, str]) -> str:
    names = [repr(name) for name in troubled]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    who = f"session {names[0]}" if len(names) == 1 else f"sessions {', '.join(names[:3])}{more}"
    why = next(iter(troubled.values())).rstrip(".")
    return (
        f"The journal does not have the latest of {who}: {why}. It is tried again; until then an engine that dies "
        "loses what was done since."
    )


def _may_come_back(closed: Collection[str]) -> str | None:
    if not closed:
        return None
    names = ", ".join(map(repr, closed))
    return f"What is closed may come back, because its files cannot be removed: {names}. It is tried again."


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is no memory for a copy of it"
    return str((isinstance(error, OSError) and error.strerror) or error or type(error).__name__).split("\n", 1)[0]
