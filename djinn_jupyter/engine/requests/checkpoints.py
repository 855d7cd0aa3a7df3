"""Save a session to a checkpoint file and restore it. The engine's thread gathers and places values; file work is for a
thread of its own (`file_worker`)."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence

from djinn_jupyter.engine.memory.kv.rows import Rows
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence.checkpoint_files import FoundCheckpoint
from djinn_jupyter.engine.persistence.file_worker import UntilDone
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.requests.owners import Owners
from djinn_jupyter.engine.requests.sessions import require_free
from djinn_jupyter.engine.requests.whole_images import WholeImages, bytes_of
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.jobs import Underway
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.footprint import all_storages_of
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import NOTEBOOK, require_showable
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.replies import CheckpointSaved, Described, Opened
from djinn_jupyter.wire.texts import in_quotes


class CheckpointRequests:
    """`until_done` makes the steps that wait for file work."""

    def __init__(
        self,
        sessions: SessionTable,
        life: SessionLifecycle,
        owners: Owners,
        images: WholeImages,
        persistence: Persistence,
        residency: Residency,
        storage_table: StorageTable,
        until_done: UntilDone,
    ) -> None:
        self._sessions, self._life, self._owners, self._images = sessions, life, owners, images
        self._persistence, self._residency = persistence, residency
        self._storage_table, self._until_done = storage_table, until_done

    @handles(ask.SaveCheckpoint)
    def save_checkpoint(self, request: ask.SaveCheckpoint, session: Session, holder: Holder) -> Steps[CheckpointSaved]:
        folder = self._persistence.checkpoints
        folder.file_of(request.name)
        if not request.replace:
            folder.require_free(request.name)
        rows = yield from self._images.rows(session)
        self._require_disk(session, rows, request, holder)
        with self._images.image(session, rows) as image:
            described = self._images.describe(request.name, image)
            saved, where = yield from self._write(request, image, described)
        return CheckpointSaved(checkpoint=saved, path=where)

    def _require_disk(
        self, session: Session, rows: Sequence[Rows], request: ask.SaveCheckpoint, holder: Holder
    ) -> None:
        """Raise OverQuota where the file would be more than the person who asks may have on disk."""
        if holder.person is None:
            return
        beside = sum(storage.nbytes for storage in all_storages_of(session, self._storage_table))
        there = self._persistence.checkpoints.size_of(request.name)
        self._residency.quotas.require_less(holder.person, more_on_disk=max(0, bytes_of(rows) + beside - there))

    def _write(
        self, request: ask.SaveCheckpoint, image: SessionImage, told: CheckpointDescription
    ) -> Generator[Blocked | None, None, tuple[CheckpointDescription, str]]:
        folder, abandoned = self._persistence.checkpoints, threading.Event()
        write = self._persistence.file_worker.start(
            lambda: folder.save(request.name, image, told, replace=request.replace, abandoned=abandoned)
        )
        try:
            saved: tuple[CheckpointDescription, str] = yield from self._until_done(write)
            return saved
        finally:
            abandoned.set()

    @handles(ask.RestoreCheckpoint)
    def restore_checkpoint(self, request: ask.RestoreCheckpoint, holder: Holder) -> Underway:
        """Restore a session, which joins the engine's when all of it is there; until then nothing is changed."""
        self._check_place(request)
        empty = self._images.empty(request.session, holder)
        return Underway(session=empty, steps=self._restore(request, holder, empty))

    def _restore(self, request: ask.RestoreCheckpoint, holder: Holder, waits: Session) -> Steps[Opened]:
        folder, worker = self._persistence.checkpoints, self._persistence.file_worker
        found: FoundCheckpoint = yield from self._until_done(worker.start(lambda: folder.found(request.name)))
        kept = yield from self._until_done(worker.start(found.read))
        session = yield from self._images.placed(kept.image, found.where, request.session, holder, waits)
        try:
            self._owners.require_own(request, holder)  # again: another may have opened it while the file was read
            self._check_place(request)
        except BaseException:
            session.cache.free()
            raise
        session.attach(holder.name, holder.notebook)
        before = self._sessions.get(request.session)
        if before is not None:
            session.shares.take_over(before.shares.by_person)
            session.answered.take_over(iter(before.answered), before.answered.let_go)
            self._life.end(before)
        self._life.begin(session)
        return Opened(session=reports.describe(session), created=True)

    def _check_place(self, request: ask.RestoreCheckpoint) -> None:
        """Raise the error for which no session of that name may be opened or replaced now."""
        there = self._sessions.get(request.session)
        if there is None:
            require_showable(request.session, "The name of a session")
            if not request.session.endswith(NOTEBOOK):
                require_free(request.session, self._sessions)
            return
        if not request.replace:
            raise UsageError(
                f"There is a session {in_quotes(there.name)} already; restore under another name, or replace "
                "it (--replace)."
            )
        if there.work == "run":
            raise IllegalMove(f"Session {in_quotes(there.name)} is running; pause it before it is replaced.")

    @handles(ask.AcceptRecomputed)
    def accept_recomputed(self, request: ask.AcceptRecomputed, session: Session, holder: Holder) -> Described:
        if session.exactness == "recomputed":
            session.count_as("exact")
        return Described(session=reports.describe(session))
