"""What lets every session survive the process: images of them in files, brought up to date behind the engine's back.

A session is written when it stops, ends, is edited or armed, and every quarter of a second while it runs; the thread
that writes is one image behind at most. A killed process loses what it did since. Images of sessions at rest are forced
to the disk, those of a running one every few seconds, which is what a loss of power loses.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec
import torch

from djinn_jupyter.engine.keeping.berth import Berth
from djinn_jupyter.engine.keeping.errands import Errands
from djinn_jupyter.engine.keeping.identity import ModelIdentity
from djinn_jupyter.engine.keeping.image import SessionImage
from djinn_jupyter.engine.keeping.kept_pages import KeptPages
from djinn_jupyter.engine.keeping.ledger import SUFFIX, Entry, Ledger, LedgerFile, read_ledger
from djinn_jupyter.engine.keeping.taking import take_image
from djinn_jupyter.engine.session import Session
from djinn_jupyter.errors import CheckpointRefused

log = logging.getLogger(__name__)

RUNNING_SECONDS: Final = 0.25
FORCE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True)
class _Account:
    """One session: its file, what is on the way there, when the next image may be taken, and when it is forced to the
    disk even though the session runs. `elsewhere`: not before its bytes are back. `trouble`: why the last image could
    not be written."""

    ledger: Ledger
    file: LedgerFile
    writing: Future[None] | None = None
    due: float = 0.0
    force_due: float = 0.0
    trouble: str | None = None
    elsewhere: bool = False


@dataclass(slots=True, kw_only=True)
class JournalStatistics:
    """Images written since the start, and the seconds that the engine's thread gave for them."""

    images: int = 0
    bytes_handed_over: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A session of an earlier process, and the file it came from."""

    image: SessionImage
    path: Path


class Journal:
    """Used on the engine's thread. `wake` is called when an image is through, on the thread that wrote it."""

    def __init__(self, berth: Berth, model: ModelIdentity, device: torch.device, wake: Callable[[], None]) -> None:
        self._berth, self._model, self._device, self._wake = berth, model, device, wake
        self._thread = Errands("djinn-journal")
        self._accounts: dict[str, _Account] = {}
        self._touched: set[str] = set()
        self._ended: SimpleQueue[str] = SimpleQueue()
        self.books = JournalStatistics()
        self.pages: KeptPages | None = None
        self.trouble: str | None = None

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._berth.folder

    # ------------------------------------------------------------------------------------------- at the start

    def recover(self) -> list[Recovered]:
        """What earlier processes left, oldest first. What cannot be used is set aside and said in the log."""
        found = []
        for path in self._berth.files(SUFFIX):
            try:
                read = read_ledger(path, self._model, self._device)
            except (CheckpointRefused, OSError, MemoryError, RuntimeError) as error:  # torch: no memory for its arrays
                self.set_aside(path, error)
                continue
            if read.damaged:
                log.warning("%s was damaged; an image before the damage is used", path.name)
            found.append(Recovered(image=read.image, path=path))
        return found

    def set_aside(self, path: Path, why: Exception) -> None:
        try:
            log.warning("A session of the journal is set aside as %s: %s", self._berth.set_aside(path), why)
        except OSError as error:
            log.warning("%s cannot be used (%s) nor set aside (%s); it stays where it is", path, why, _reason(error))

    def adopt(self, session: str, path: Path) -> None:
        """A recovered session goes on in its file; the next image replaces what is there. What was found is forced to
        the disk: the process that wrote it may not have come to that."""
        account = self._accounts[session] = self._account(path)
        self._in_background(account.file.force, f"The journal of session {session!r} could not be forced to the disk")

    def _account(self, path: Path) -> _Account:
        return _Account(ledger=Ledger(path, self._device), file=LedgerFile(path, self._model))

    # ------------------------------------------------------------------------------------------- while it runs

    def touch(self, session: str) -> None:
        """It may be other than its last image."""
        self._touched.add(session)

    def attend(self, sessions: Mapping[str, Session], *, last: bool = False) -> None:
        """Take images of the sessions that were touched and are due, and hand them over. `last`: of all, at once."""
        now = time.monotonic()
        while not self._ended.empty():
            self._settle(self._ended.get(), now)
        if not self._touched:
            return
        for name in tuple(self._touched):
            session = sessions.get(name)
            account = self._accounts.get(name)
            if session is None:
                self._touched.discard(name)
            elif self._is_due(session, account, now, last=last):
                self._touched.discard(name)
                self._hand_over(session, account or self._new(name), now, safe=last)

    def take_before_leaving(self, session: Session) -> None:
        """Where it is other than its last image, or that is in the file of an engine before: a new one at once, be the
        last one still on the way to its file."""
        account = self._accounts.get(session.name)
        if session.name in self._touched or (account is not None and account.ledger.anew):
            self._touched.discard(session.name)
            self._hand_over(session, account or self._new(session.name), time.monotonic())

    def forget(self, session: str) -> None:
        """It was closed: its file goes."""
        self._touched.discard(session)
        account = self._accounts.pop(session, None)
        if account is not None:
            self._in_background(account.file.remove, f"The closed session {session!r} may come back")
            self._tell()

    def _in_background(self, work: Callable[[], None], otherwise: str) -> None:
        """`otherwise` goes to the log where it fails."""

        def done(errand: Future[None]) -> None:
            error = errand.exception()
            if error is not None:
                log.warning("%s: %s", otherwise, _reason(error))

        self._thread.start(work).add_done_callback(done)

    def _new(self, name: str) -> _Account:
        path = self._berth.folder / f"{secrets.token_hex(8)}{SUFFIX}"
        return self._accounts.setdefault(name, self._account(path))

    def _is_due(self, session: Session, account: _Account | None, now: float, *, last: bool) -> bool:
        """`last`: as soon as it is possible at all."""
        if not session.residence.present and (account is None or account.ledger.anew or account.elsewhere):
            return False
        if account is None:
            return True
        if account.writing is not None and not account.writing.done():
            return False
        return last or now >= account.due or (session.state != "running" and account.trouble is None)

    def _hand_over(self, session: Session, account: _Account, now: float, *, safe: bool = False) -> None:
        safe = safe or session.state != "running" or now >= account.force_due
        try:
            entry = self._entry(session, account, safe=safe)
            account.elsewhere = entry is None
            if entry is None:
                self._touched.add(session.name)
                return
            before = account.writing
            account.writing = self._thread.start(lambda: self._write(before, account.file, entry))
        except CheckpointRefused as refused:
            self._has_trouble(session.name, account, str(refused))
            return
        except (MemoryError, RuntimeError) as error:  # torch: no memory for copies; or none for the thread
            self._has_trouble(session.name, account, _reason(error))
            self._again(session.name, account, now)
            return
        account.due = now + RUNNING_SECONDS
        account.force_due = now + FORCE_SECONDS if entry.safe else account.force_due
        account.writing.add_done_callback(lambda _: self._through(session.name))
        self.books.images += 1
        self.books.bytes_handed_over += len(entry.body) + sum(tensor.nbytes for _, tensor in entry.arrays)
        self.books.seconds += time.monotonic() - now

    def _entry(self, session: Session, account: _Account, *, safe: bool) -> Entry | None:
        image = take_image(session, None)
        places = None if self.pages is None else self.pages.places_of(session, image)
        image = msgspec.structs.replace(image, places=places)
        return account.ledger.entry(image, safe=safe, away=not session.residence.present)

    def _write(self, before: Future[None] | None, file: LedgerFile, entry: Entry) -> None:
        if entry.names_places and self.pages is not None:
            self.pages.sync()
        _write_after(before, file, entry)

    def _through(self, session: str) -> None:
        self._ended.put(session)
        self._wake()

    def _settle(self, name: str, now: float) -> None:
        """How a write went. What failed is due again after a while, as a whole."""
        account = self._accounts.get(name)
        if account is None or account.writing is None or not account.writing.done():
            return
        error = account.writing.exception()
        account.writing = None
        if error is not None:
            self._has_trouble(name, account, _reason(error))
            self._again(name, account, now)
        elif not account.ledger.anew:
            account.trouble = None
            self._tell()

    def _has_trouble(self, name: str, account: _Account, why: str) -> None:
        """Its next image is the first of a new file."""
        if account.trouble != why:
            log.warning("The journal of session %r could not be written: %s", name, why)
        account.trouble = why
        account.ledger.begin_anew()
        self._tell()

    def _again(self, name: str, account: _Account, now: float) -> None:
        account.due = now + RETRY_SECONDS
        self._touched.add(name)

    def _tell(self) -> None:
        """What a user should know."""
        troubled = {name: account.trouble for name, account in self._accounts.items() if account.trouble is not None}
        self.trouble = _sentence(troubled) if troubled else None

    # ------------------------------------------------------------------------------------------- at the end

    def close(self, sessions: Mapping[str, Session], *, forget: bool) -> None:
        """The last images of all, or no trace of them; returns when that is done."""
        for name in tuple(self._accounts) if forget else ():
            self.forget(name)
        if not forget:
            self._wait()
            self.attend(sessions, last=True)
        self._wait()
        while not self._ended.empty():
            self._settle(self._ended.get(), time.monotonic())
        if self.trouble is not None:
            log.error("%s", self.trouble)
        for account in self._accounts.values():
            account.file.close()
        self._thread.close()
        if self.pages is not None and (forget or not sessions):
            self.pages.remove()
        self._berth.release()

    def _wait(self) -> None:
        self._thread.start(lambda: None).result()


def _sentence(troubled: Mapping[str, str]) -> str:
    names = [repr(name) for name in troubled]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    who = f"session {names[0]}" if len(names) == 1 else f"sessions {', '.join(names[:3])}{more}"
    why = next(iter(troubled.values())).rstrip(".")
    return (
        f"The journal does not have the latest of {who}: {why}. It is tried again; until then an engine that dies "
        "loses what was done since."
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is no memory for a copy of it"
    return str((isinstance(error, OSError) and error.strerror) or error or type(error).__name__).split("\n", 1)[0]


def _write_after(before: Future[None] | None, file: LedgerFile, entry: Entry) -> None:
    """Raises what the write before raised, if there is one: then the file may not go on as if it held that entry."""
    if before is not None:
        before.result()
    file.write(entry)
