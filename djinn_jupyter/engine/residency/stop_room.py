"""Room for the tensors of stops: a new one is let in, an older one fetched. Waits, and says when there is no use."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from djinn_jupyter.engine.memory.blobs import Blob
from djinn_jupyter.engine.memory.budget import mebibytes
from djinn_jupyter.engine.residency.belongings import tensors_of_frame
from djinn_jupyter.errors import SlabFull

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine
    from djinn_jupyter.engine.frame import Frame
    from djinn_jupyter.engine.scheduler import Blocked
    from djinn_jupyter.engine.session import Session

NO_TIER = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."


def admitted(engine: Engine, session: Session, frame: Frame) -> Generator[Blocked | None, None, None]:
    """Steps until what a pass kept of `frame` is within the limit: older stops leave, then sessions, and where none of
    them can, the session's oldest stops are dropped. Raises SlabFull where all that does not do."""
    engine.blobs.note(tensors_of_frame(frame))
    dropped = 0
    while (over := engine.budget.overdrawn) > dropped:  # somebody who writes it down may hold what was dropped yet
        before = engine.swapping.changes
        if engine.room.relieve(session):
            yield lambda before=before: engine.swapping.changes == before  # type: ignore[misc]
        elif session.history.stops and session.history.present != 0:
            dropped += sum(blob.counted for blob in engine.older_stops.of(session.history.stops[0]))
            session.history.drop_oldest(NO_TIER)
        else:
            raise SlabFull(f"The stop keeps {mebibytes(over)} too much on the device, {engine.budget.bound}")


def fetched(engine: Engine, session: Session, storages: Sequence[Blob]) -> Generator[Blocked | None, None, None]:
    """Steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
    return engine.older_stops.fetch(storages, lambda need: engine.room.wait_for(session, need))
