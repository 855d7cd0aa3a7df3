"""At the start of an engine: adopt the sessions of earlier processes of its kind, without holders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from functools import partial

import torch

from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.residency import open_disk
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Moving, Session
from djinn_jupyter.engine.session.table import RunningTime, SessionTable, named_notebook
from djinn_jupyter.engine.store.adopted import SUFFIX, KeptPages, keep_pages
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.store.load import load_session
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.store.records import values_of
from djinn_jupyter.engine.store.session_store import LeftBehind
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import MissingDependency, StorageFailed, TierFull
from djinn_jupyter.wire.request_base import is_carried

log = logging.getLogger(__name__)


class Recovery:
    """`undecided` is called for each session that may be another engine's, `wake` when the journal has flushed
    something to the disk."""

    def __init__(
        self,
        config: EngineConfig,
        runtime: Runtime,
        *,
        persistence: Persistence,
        sessions: SessionTable,
        tiers: Tiers,
        storage_table: StorageTable,
        running_time: RunningTime,
        undecided: Callable[[Session], None],
        wake: Callable[[], None],
    ) -> None:
        self._config, self._runtime, self._persistence, self._sessions = config, runtime, persistence, sessions
        self._tiers, self._storage_table, self._wake = tiers, storage_table, wake
        self._running_time, self._undecided = running_time, undecided

    @torch.inference_mode()
    def open_journal(self) -> tuple[str, ...]:
        """Journal the engine's sessions from now on. Return the names of the recovered ones.

        Sets aside what does not fit this engine. Raises StorageFailed.
        """
        journal = self._persistence.open_journal(self._config.identity.slug(), self._wake)
        journal.source.values = partial(values_of, self._storage_table)
        store = journal.store
        left = store.recover(journal.source)
        open_file = partial(open_disk, self._config, self._runtime.forward.device)
        pages = keep_pages(self._tiers, self._storage_table, open_file, store.folder, store.files(SUFFIX))
        journal.pages = pages
        brought_back = [one for found in left if (one := self._bring_back(journal, found)) is not None]
        if pages is not None:
            self._adopt(pages, brought_back)
        self._persistence.write_to(journal, self._running_time)
        recomputed = sum(session.needs_recompute for session, _ in brought_back)
        self._runtime.counters.note_recovered(exact=len(brought_back) - recomputed, recomputed=recomputed)
        return tuple(self._sessions)

    def _bring_back(self, journal: Journal, found: LeftBehind) -> tuple[Session, SessionImage] | None:
        """Return the session and its image; None where the image does not fit this engine and is set aside."""
        image, name = found.image, _free_name(found.image.name, self._sessions)
        kept = self._config.stops_kept
        try:
            session = load_session(self._runtime, image, name=name, owner=image.owner, holder=None, stops_kept=kept)
            session.keep_for(named_notebook(name), image.holder)
            session.shares.take_over(image.shares)
            session.answered.take_over(image.answered, image.let_go)
        except Exception as error:  # noqa: BLE001  the start's edge: one file's content must not stop the others
            journal.store.leave_out(found, error)
            return None
        journal.adopt(name, found)
        if image.moving is not None and not self._may_be_here(journal, session, image.moving):
            return None
        self._sessions.take_over(session)
        return session, image

    def _may_be_here(self, journal: Journal, session: Session, moving: Moving) -> bool:
        """Return whether a session between two engines is with this one; forget it where it is not. Where the decision
        is unreadable it may be, and answers nothing until it is known (`undecided`)."""
        try:
            place = self._persistence.moves.at(moving.store)
            here = place.decide(moving)
        except (StorageFailed, MissingDependency) as error:
            log.warning("Session %r was between two engines, and it is not known which has it: %s", session.name, error)
            self._undecided(session)
            return True
        if here:
            session.moving.end()
            journal.touch(session.name)
            return True
        journal.forget(session.name)
        journal.force_now()
        place.forget(moving.move)
        return False

    def _adopt(self, pages: KeptPages, brought_back: Sequence[tuple[Session, SessionImage]]) -> None:
        """Adopt the pages on the disk, the last written image first: a place that two images name is the later's."""
        try:
            pages.begin_with(image for _, image in brought_back)
        except TierFull as full:
            log.warning("Pages that are on disk are given up: %s", full)
            return
        for session, image in reversed(brought_back):
            pages.adopt(self._runtime, self._storage_table, session, image)


def _free_name(name: str, taken: Container[str]) -> str:
    """Return a free name: two engines that ran at once may both have had a session of that name; neither is lost."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = _numbered(name, number)
    return found


def _numbered(name: str, number: int) -> str:
    """Return the name with a number after it, its end cut off where requests could not carry it."""
    tail = f" ({number})"
    whole = f"{name}{tail}"
    return whole if is_carried(whole) else f"{name[: -len(tail)]}{tail}"
