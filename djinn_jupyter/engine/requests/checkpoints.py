"""Save a session to a checkpoint file and restore it. The engine's thread gathers and places values; file work is for a
thread of its own (`file_worker`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import Rows, put_rows, take_rows
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence import checkpoint_files, dump, load
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.persistence.swapped_values import values_of
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.requests.owners import Owners
from djinn_jupyter.engine.requests.sessions import require_free
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.jobs import Underway
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.footprint import all_storages_of, own_tensors, past_tensors
from djinn_jupyter.engine.session.history import History
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import CheckpointRefused, IllegalMove, SlabFull, UsageError
from djinn_jupyter.options import SettledOptions
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import NOTEBOOK, require_showable
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.replies import CheckpointSaved, Described, Opened
from djinn_jupyter.wire.texts import in_quotes

UntilDone = Callable[[Future[Any]], Generator[None, None, Any]]


class CheckpointRequests:
    """`until_done` makes the steps that wait for file work."""

    def __init__(
        self,
        sessions: SessionTable,
        life: SessionLifecycle,
        owners: Owners,
        runtime: Runtime,
        persistence: Persistence,
        residency: Residency,
        storage_table: StorageTable,
        until_done: UntilDone,
        options: SettledOptions,
    ) -> None:
        self._sessions, self._life, self._owners = sessions, life, owners
        self._runtime, self._residency = runtime, residency
        self._persistence, self._storage_table, self._until_done, self._options = (
            persistence,
            storage_table,
            until_done,
            options,
        )
        self._forward, self._description = runtime.forward, runtime.description

    @handles(ask.SaveCheckpoint, changes=False)
    def save_checkpoint(self, request: ask.SaveCheckpoint, holder: Holder) -> Steps:
        session = self._sessions.find(request.session)
        folder = self._persistence.checkpoints
        folder.file_of(request.name)
        if not request.replace:
            folder.require_free(request.name)
        end = session.cache.length if session.frame is None else session.frame.committed + len(session.frame.tokens)
        rows = yield from take_rows(session.cache, end)
        self._require_disk(session, rows, request, holder)
        groups = tuple(dump.group_rows(g, r) for g, r in zip(self._forward.geometry.groups, rows, strict=True))
        image = dump.dump_session(session, groups)
        told = checkpoint_files.describe(request.name, image, self._description.name, self._description.dtype)
        with self._residency.pinned((*own_tensors(session), *past_tensors(session))):
            image = dump.with_values(
                image,
                self._storage_table.is_away,
                lambda tensor: values_of(self._storage_table, tensor).clone(),
            )
            saved, path = yield from self._write(request, image, told)
        return CheckpointSaved(checkpoint=saved, path=str(path))

    def _require_disk(
        self, session: Session, rows: Sequence[Rows], request: ask.SaveCheckpoint, holder: Holder
    ) -> None:
        """Raise OverQuota where the file would be more than the person who asks may have on disk."""
        if holder.person is None:
            return
        beside = sum(storage.nbytes for storage in all_storages_of(session, self._storage_table))
        there = self._persistence.checkpoints.size_of(request.name)
        self._residency.quotas.require_less(holder.person, more_on_disk=max(0, _bytes_of(rows) + beside - there))

    def _write(
        self, request: ask.SaveCheckpoint, image: SessionImage, told: CheckpointDescription
    ) -> Generator[Blocked | None, None, tuple[CheckpointDescription, Path]]:
        folder, abandoned = self._persistence.checkpoints, threading.Event()
        write = self._persistence.file_worker.start(
            lambda: folder.save(request.name, image, told, replace=request.replace, abandoned=abandoned)
        )
        try:
            saved: tuple[CheckpointDescription, Path] = yield from self._until_done(write)
            return saved
        finally:
            abandoned.set()

    @handles(
        ask.RestoreCheckpoint,
        opens=True,
        while_away=True,
        without_rows=True,
        owner_only=lambda request: "restore over it" if request.replace else None,
    )
    def restore_checkpoint(self, request: ask.RestoreCheckpoint, holder: Holder) -> Underway:
        """Restore a session, which joins the engine's when all of it is there; until then nothing is changed."""
        self._check_place(request)
        path = self._persistence.checkpoints.find(request.name)
        empty = Session(
            name=request.session,
            owner=holder.user,
            holder=holder.name,
            cache=self._runtime.space.new_cache(),
            history=History(kept=self._options.stops_kept),
        )
        return Underway(session=empty, steps=self._restore(request, holder, path, empty))

    def _restore(self, request: ask.RestoreCheckpoint, holder: Holder, path: Path, waits: Session) -> Steps:
        folder = self._persistence.checkpoints
        kept = yield from self._until_done(self._persistence.file_worker.start(lambda: folder.read(path)))
        session = load.load_session(
            self._runtime,
            kept.image,
            name=request.session,
            owner=holder.user,
            holder=holder.name,
            stops_kept=self._options.stops_kept,
        )
        try:
            rows = load.rows_of(self._runtime, kept.image)
            yield from self._put(session.cache, rows, kept.image.committed, waits)
            session.cache.restore_all(load.states_of(self._runtime, kept.image.states or {}))
            self._owners.require_own(request, holder)  # again: another may have opened it while the file was read
            self._check_place(request)
            session.attach(holder.name, holder.notebook)
        except checkpoint_files.CRAFTED as error:
            session.cache.free()
            raise CheckpointRefused(f"{path} is refused. What it holds does not fit this engine: {error}.") from error
        except BaseException:
            session.cache.free()
            raise
        before = self._sessions.get(request.session)
        if before is not None:
            session.shares.take_over(before.shares.by_person)
            session.answered.take_over(iter(before.answered), before.answered.let_go)
            self._life.end(before)
        self._life.begin(session)
        return Opened(session=reports.describe(session), created=True)

    def _put(
        self, cache: PagedCache, rows: Sequence[Rows], length: int, waits: Session
    ) -> Generator[Blocked | None, None, None]:
        """Put rows into pages, once there is room for them. `waits` is the session whose job this is. Raises SlabFull
        where no room can be made, OverQuota where the person may not have so much."""
        need = _bytes_of(rows)
        yield from self._residency.within_quota(waits, need)
        while True:
            try:
                yield from put_rows(cache, rows, length)
                return
            except SlabFull:
                blocked = self._residency.wait_for(waits, need)
                if blocked is None:
                    raise
            yield blocked

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

    @handles(ask.AcceptRecomputed, while_running=True)
    def accept_recomputed(self, request: ask.AcceptRecomputed, holder: Holder) -> Described:
        session = self._sessions.find(request.session)
        if session.exactness == "recomputed":
            session.count_as("exact")
        return Described(session=reports.describe(session))


def _bytes_of(rows: Sequence[Rows]) -> int:
    return sum(tensor.nbytes for group in rows for pair in group.runs for tensor in pair)
