"""Whole images of sessions, with their rows and states, and sessions made of such images. Knows no files."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from djinn_jupyter.engine.loop.dispatch import handles
from djinn_jupyter.engine.loop.lifecycle import SessionLifecycle
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.owners import Owners
from djinn_jupyter.engine.loop.sessions import require_name
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import Rows, put_rows, take_rows
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.footprint import all_storages_of, own_tensors, past_tensors, tensors_of_states
from djinn_jupyter.engine.session.history import History
from djinn_jupyter.engine.session.jobs import Underway
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session, parts_within
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.store import checkpoint_files, dump, load
from djinn_jupyter.engine.store.checkpoint_files import FoundCheckpoint, UntilDone
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.store.records import values_of
from djinn_jupyter.errors import CheckpointRefused, IllegalMove, UsageError
from djinn_jupyter.settings import SettledOptions
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.replies import CheckpointSaved, Described, Opened
from djinn_jupyter.wire.texts import in_quotes

TakingRows = Generator[None, None, tuple[Rows, ...]]


class WholeImages:
    def __init__(
        self, runtime: Runtime, residency: Residency, storage_table: StorageTable, options: SettledOptions
    ) -> None:
        self._runtime, self._residency = runtime, residency
        self._storage_table, self._options = storage_table, options

    def rows(self, session: Session) -> TakingRows:
        """Take the rows of a session step by step, those of a stopped pass too."""
        end = session.cache.length if session.frame is None else session.frame.committed + len(session.frame.tokens)
        return take_rows(session.cache, end)

    @contextmanager
    def image(self, session: Session, rows: Sequence[Rows]) -> Iterator[SessionImage]:
        """Yield the image of a session, whose tensors stay where they are meanwhile."""
        groups = zip(self._runtime.forward.geometry.groups, rows, strict=True)
        image = dump.dump_session(session, tuple(dump.group_rows(group, taken) for group, taken in groups))
        with self._residency.pinned((*own_tensors(session), *past_tensors(session))):
            yield dump.with_values(
                image,
                self._storage_table.is_away,
                lambda tensor: values_of(self._storage_table, tensor).clone(),
            )

    def describe(self, name: str, image: SessionImage) -> CheckpointDescription:
        """Return the list entry of a file that is about to have the image."""
        model = self._runtime.description
        return checkpoint_files.describe(name, image, model.name, model.dtype)

    def empty(self, name: str, holder: Holder) -> Session:
        """Return a session whose work is to be made of an image."""
        return Session(
            name=name,
            owner=holder.user,
            holder=holder.name,
            cache=self._runtime.space.new_cache(),
            history=History(kept=self._options.stops_kept),
        )

    def placed(
        self, image: SessionImage, source: str, name: str, holder: Holder, waits: Session
    ) -> Generator[Blocked | None, None, Session]:
        """Return a session like the image, with its rows and states, not yet in the table. `source` names the file in a
        refusal; `waits` is the session whose job this is. Raises SlabFull where no room can be made, and OverQuota
        where the person may not have so much."""
        need = _bytes_at_once(image)
        yield from self._residency.set_aside(waits, need, of_owner_budget=need)
        session = load.load_session(
            self._runtime,
            image,
            name=name,
            owner=holder.user,
            holder=holder.name,
            stops_kept=self._options.stops_kept,
        )
        try:
            self._residency.note_tensors(own_tensors(session))
            self._residency.put_back()
            rows = load.rows_of(self._runtime, image)
            yield from self._put(session.cache, rows, image.committed, waits)
            session.cache.restore_all(load.states_of(self._runtime, image.states or {}))
            self._residency.note_tensors((*tensors_of_states(session.cache.live_states()), *past_tensors(session)))
        except checkpoint_files.CRAFTED as error:
            session.cache.free()
            raise CheckpointRefused(f"{source} is refused. What it holds does not fit this engine: {error}.") from error
        except BaseException:
            session.cache.free()
            raise
        return session

    def _put(
        self, cache: PagedCache, rows: Sequence[Rows], length: int, waits: Session
    ) -> Generator[Blocked | None, None, None]:
        """Put rows into pages, once there is room for them."""
        need = bytes_of(rows)

        def begun() -> Generator[None, None, None]:
            steps = put_rows(cache, rows, length)
            next(steps, None)
            return steps

        yield from (yield from self._residency.with_room(waits, lambda: need, begun, of_owner_budget=lambda: need))


def _bytes_at_once(image: SessionImage) -> int:
    """Return the bytes that an image takes on the device at once, but for the ends of pages: older stops may leave."""
    present = () if image.frame is None else image.frames[image.frame : image.frame + 1]
    kept = parts_within((*present, image.logits, image.states, image.rows), Tensor)
    return sum({id(tensor): tensor.nbytes for tensor in kept}.values())


def bytes_of(rows: Sequence[Rows]) -> int:
    return sum(tensor.nbytes for group in rows for pair in group.runs for tensor in pair)


# Save a session to a checkpoint file and restore it. The engine's thread gathers and places values; file work is for a
# thread of its own (`file_worker`).


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
        self._residency.owner_budgets.require_less(holder.person, more_on_disk=max(0, bytes_of(rows) + beside - there))

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
            return require_name(request.session, self._sessions)
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
