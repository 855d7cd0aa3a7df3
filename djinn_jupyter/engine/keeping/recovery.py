"""At the start of an engine: the sessions of earlier processes of its kind become its own, held by nobody."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from djinn_jupyter.engine.keeping.elsewhere import values_of
from djinn_jupyter.engine.keeping.image import SessionImage
from djinn_jupyter.engine.keeping.kept_pages import SUFFIX, KeptPages, keep_pages
from djinn_jupyter.engine.keeping.rebuilding import rebuild
from djinn_jupyter.engine.registration import identity_of
from djinn_jupyter.engine.session import Session
from djinn_jupyter.errors import TierFull

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine

log = logging.getLogger(__name__)


@torch.inference_mode()
def open_journal(engine: Engine) -> tuple[str, ...]:
    """From now on the engine's sessions are in its journal; the names of those that were brought back.

    What does not fit this engine is set aside. Raises StorageFailed.
    """
    journal = engine.keeping.open_journal(identity_of(engine.config).slug(), engine.mailbox.wake)
    journal.values = partial(values_of, engine)
    left = journal.recover()
    journal.pages = keep_pages(engine, journal.folder, journal.files(SUFFIX))
    brought_back: list[tuple[Session, SessionImage]] = []
    for found in left:
        name = _free_name(found.image.name, engine.sessions)
        try:
            session = rebuild(engine, found.image, name=name, owner=found.image.owner, holder=None)
        except Exception as error:  # noqa: BLE001  the start's edge: whatever is in a file, the others come back
            journal.set_aside(found.path, error)
            continue
        journal.adopt(name, found)
        session.blobs = engine.blobs
        engine.sessions[name] = session
        brought_back.append((session, found.image))
    if journal.pages is not None:
        _adopt(engine, journal.pages, brought_back)
    engine.keeping.journal = journal
    engine.books.recovered_recomputed = sum(session.lost for session, _ in brought_back)
    engine.books.recovered_exact = len(brought_back) - engine.books.recovered_recomputed
    engine.bulletin.publish(all_sessions=True)
    return tuple(engine.sessions)


def _adopt(engine: Engine, pages: KeptPages, brought_back: Sequence[tuple[Session, SessionImage]]) -> None:
    """The pages that had reached the disk, the last written image first: where two name one place, it is that one's."""
    try:
        pages.begin_with(image for _, image in brought_back)
    except TierFull as full:
        log.warning("Pages that are on disk are given up: %s", full)
        return
    for session, image in reversed(brought_back):
        pages.adopt(engine, session, image)


def _free_name(name: str, taken: Container[str]) -> str:
    """Two engines that ran at once may both have had a session of that name; neither is lost."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
