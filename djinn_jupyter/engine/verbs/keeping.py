"""Checkpoints: a session to a file and back. The engine's thread gathers and places values; files are errands."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from djinn_jupyter.engine.history import History
from djinn_jupyter.engine.keeping import checkpoints, rebuilding, taking
from djinn_jupyter.engine.keeping.elsewhere import values_of
from djinn_jupyter.engine.keeping.errands import until_done
from djinn_jupyter.engine.keeping.image import SessionImage
from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.memory.cache import PagedCache
from djinn_jupyter.engine.memory.rows import Rows, put_rows, take_rows
from djinn_jupyter.engine.residency.belongings import own_tensors, past_tensors
from djinn_jupyter.engine.scheduler import Blocked, Steps, Underway
from djinn_jupyter.engine.session import Session
from djinn_jupyter.engine.verbs.sessions import require_free
from djinn_jupyter.errors import CheckpointRefused, IllegalMove, SessionHeld, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import NOTEBOOK, require_showable, told_apart
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.replies import CheckpointSaved, Described, Opened

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def save_checkpoint(engine: Engine, request: ask.SaveCheckpoint, holder: Holder) -> Steps:
    session = engine.session(request.session)
    folder = engine.keeping.checkpoints
    folder.file_of(request.name)
    if not request.replace:
        folder.require_free(request.name)
    end = session.cache.length if session.frame is None else session.frame.committed + len(session.frame.tokens)
    rows = yield from take_rows(session.cache, end)
    groups = tuple(taking.group_rows(g, r) for g, r in zip(engine.geometry.groups, rows, strict=True))
    image = taking.take_image(session, groups)
    told = checkpoints.describe(request.name, image, engine.description.name, engine.description.dtype)
    with engine.older_stops.pinned((*own_tensors(session), *past_tensors(session))):
        image = taking.with_values(
            image,
            engine.blobs.is_away,
            lambda tensor: values_of(engine, tensor).clone(),
        )
        saved, path = yield from _write(engine, request, image, told)
    return CheckpointSaved(checkpoint=saved, path=str(path))


def _write(
    engine: Engine, request: ask.SaveCheckpoint, image: SessionImage, told: CheckpointDescription
) -> Generator[Blocked | None, None, tuple[CheckpointDescription, Path]]:
    folder, abandoned = engine.keeping.checkpoints, threading.Event()
    write = engine.keeping.errands.start(
        lambda: folder.save(request.name, image, told, replace=request.replace, abandoned=abandoned)
    )
    try:
        return (yield from until_done(engine, write))
    finally:
        abandoned.set()


def restore_checkpoint(engine: Engine, request: ask.RestoreCheckpoint, holder: Holder) -> Underway:
    """The session is the engine's when all of it is there; until then nothing is changed."""
    _check_place(engine, request, holder)
    path = engine.keeping.checkpoints.find(request.name)
    empty = Session(
        name=request.session,
        owner=holder.user,
        holder=holder.name,
        cache=engine.new_cache(),
        history=History(kept=engine.config.stops_kept),
    )
    return Underway(session=empty, steps=_restore(engine, request, holder, path, empty))


def _restore(engine: Engine, request: ask.RestoreCheckpoint, holder: Holder, path: Path, waits: Session) -> Steps:
    folder = engine.keeping.checkpoints
    kept = yield from until_done(engine, engine.keeping.errands.start(lambda: folder.read(path)))
    session = rebuilding.rebuild(engine, kept.image, name=request.session, owner=holder.user, holder=holder.name)
    try:
        rows = rebuilding.rows_of(engine, kept.image)
        yield from _put(engine, session.cache, rows, kept.image.committed, waits)
        session.cache.restore_all(rebuilding.states_of(engine, kept.image.states or {}))
        _check_place(engine, request, holder)
    except checkpoints.CRAFTED as error:
        session.cache.free()
        raise CheckpointRefused(f"{path} is refused. What it holds does not fit this engine: {error}.") from error
    except BaseException:
        session.cache.free()
        raise
    before = engine.sessions.get(request.session)
    if before is not None:
        engine.drop_session(before)
    engine.add_session(session)
    return Opened(session=session.describe(), created=True)


def _put(
    engine: Engine, cache: PagedCache, rows: Sequence[Rows], length: int, waits: Session
) -> Generator[Blocked | None, None, None]:
    """Rows into pages, once there is room for them. `waits` is the session whose job this is. Raises SlabFull where no
    room can be made."""
    need = sum(tensor.nbytes for group in rows for pair in group.runs for tensor in pair)
    while True:
        try:
            yield from put_rows(cache, rows, length)
            return
        except SlabFull:
            blocked = engine.room.wait_for(waits, need)
            if blocked is None:
                raise
        yield blocked


def _check_place(engine: Engine, request: ask.RestoreCheckpoint, holder: Holder) -> None:
    """Whether a session of that name may be opened or replaced now."""
    there = engine.sessions.get(request.session)
    if there is None:
        require_showable(request.session, "The name of a session")
        if not request.session.endswith(NOTEBOOK):
            require_free(request.session, engine.sessions)
        return
    if not request.replace:
        raise UsageError(
            f"There is a session {there.name!r} already; restore under another name, or replace it (--replace)."
        )
    if there.holder not in (None, holder.name) and not request.force:
        shown = told_apart(engine.sessions)[there.name]
        raise SessionHeld(
            f"Session {shown!r} is open in another kernel; to restore over it all the same, add --force (in Python "
            "force=True), or restore under another name."
        )
    if there.job is not None and there.job.kind == "run":
        raise IllegalMove(f"Session {there.name!r} is running; pause it before it is replaced.")


def accept_recomputed(engine: Engine, request: ask.AcceptRecomputed, holder: Holder) -> Described:
    session = engine.session(request.session)
    session.exactness = "exact"
    return Described(session=session.describe())
