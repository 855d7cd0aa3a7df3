"""At the start of an engine: the sessions of earlier processes of its kind become its own, held by nobody."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import torch

from djinn_jupyter.engine.keeping.rebuilding import rebuild
from djinn_jupyter.engine.registration import identity_of
from djinn_jupyter.errors import CheckpointRefused

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


@torch.inference_mode()
def open_journal(engine: Engine) -> tuple[str, ...]:
    """From now on the engine's sessions are in its journal; the names of those that were brought back.

    What does not fit this engine is set aside. Raises StorageFailed.
    """
    journal = engine.keeping.open_journal(identity_of(engine.config).slug(), engine.mailbox.wake)
    for found in journal.recover():
        name = _free_name(found.image.name, engine.sessions)
        try:
            session = rebuild(engine, found.image, name=name, owner=found.image.owner, holder=None)
        except CheckpointRefused as refused:
            journal.set_aside(found.path, refused)
            continue
        journal.adopt(name, found.path)
        engine.sessions[name] = session
    engine.keeping.journal = journal
    engine.swapping.about_to_leave = engine.keeping.take_before_leaving
    engine.bulletin.publish(all_sessions=True)
    return tuple(engine.sessions)


def _free_name(name: str, taken: Container[str]) -> str:
    """Two engines that ran at once may both have had a session of that name; neither is lost."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
