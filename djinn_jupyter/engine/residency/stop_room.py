"""Room for what passes leave on the device: set aside before a pass is entered, asked for before anything is kept,
given back when the books have what was made. Waits, and says when there is no use."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

from djinn_jupyter.engine.crossing import Journal, Outcome
from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.memory.blobs import Blob
from djinn_jupyter.engine.memory.budget import Budget, mebibytes
from djinn_jupyter.engine.memory.cache import PagedCache
from djinn_jupyter.engine.plan import Plan
from djinn_jupyter.engine.residency.belongings import own_tensors
from djinn_jupyter.errors import SlabFull

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine
    from djinn_jupyter.engine.scheduler import Blocked
    from djinn_jupyter.engine.session import Session

NO_TIER: Final = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."
GENERATOR_BYTES: Final = 5056  # of the state of a generator of the CPU's, which is on the device where that is the CPU
LOGIT_BYTES: Final = 4  # they are kept in float32
STATES: Final = 4  # of a recurrent family: the live ones, replaced, those before the pass, and of a period's end


class PassRoom:
    """Bytes that one entry into a pass is to have for what it leaves: `always` for what every pass does, `expected` for
    what one keeps that stops, until it has been found to keep more. `refused`: what was asked for last was not
    there."""

    def __init__(self, budget: Budget, owner: object, always: int, expected: int) -> None:
        self._budget, self._owner, self._always = budget, owner, always
        self.need, self.refused = always + expected, False

    def open(self) -> None:
        """Set it aside. Raises SlabFull."""
        self.refused = True
        self._budget.set_aside(self.need, by=None)
        self.refused = False

    def admit(self, kept: int) -> None:
        """Let a pass that is left keep so many bytes. The working copy that it reads stays. Raises SlabFull."""
        self.need, self.refused = max(self.need, self._always + kept), True
        self._budget.set_aside(self._always + kept, by=self._owner)
        self.refused = False


def entered(
    engine: Engine, session: Session, frame: Frame, plan: Plan, cache: PagedCache, journal: Journal
) -> Generator[Blocked | None, None, Outcome]:
    """`Forward.enter`, once there is room for its pages and for what it leaves: older stops leave, then sessions, and
    where none of them can, the session's oldest stops are dropped for what its pass keeps. Raises SlabFull where all
    that does not do."""
    hidden = len(frame.tokens) * engine.anatomy.hidden_size * engine.model.dtype.itemsize if plan.halts else 0
    room = PassRoom(engine.budget, cache.owner, _left_by_every_pass(engine, cache), hidden)
    while True:
        try:
            room.open()
            return engine.forward.enter(frame, plan, cache, journal, room.admit)
        except SlabFull:
            engine.budget.put_back()
            need = room.need + cache.bytes_wanted(frame.committed, frame.end)
            blocked = engine.room.wait_for(session, need)
            if blocked is None and not room.refused:
                raise
            if blocked is None:
                _drop_a_stop(engine, session, room.need)
        yield blocked


def _left_by_every_pass(engine: Engine, cache: PagedCache) -> int:
    """Bytes of logits and states, also where a pass stops before it has them."""
    generator = GENERATOR_BYTES if engine.forward.device.type == "cpu" else 0
    logits = engine.description.vocab_size * LOGIT_BYTES
    return generator + logits + STATES * max(engine.geometry.recurrent_state_bytes, cache.recurrent_bytes)


def _drop_a_stop(engine: Engine, session: Session, need: int) -> None:
    """Raises SlabFull where there is none to drop."""
    history = session.history
    if not history.stops or history.present == 0:
        raise SlabFull(f"The stop keeps {mebibytes(need)} on the device, {engine.budget.bound}")
    history.drop_oldest(NO_TIER)
    engine.blobs.purge()


def accounted(engine: Engine, session: Session) -> None:
    """What a slice has made is in the books; the rest of what was set aside for it is given back."""
    engine.blobs.note(own_tensors(session))
    if engine.recurrent:
        for state in session.cache.live_states().values():
            engine.blobs.note(state.tensors())
    engine.budget.put_back()


def set_aside(engine: Engine, session: Session, size: int) -> Generator[Blocked | None, None, None]:
    """Steps until so many bytes are set aside for the rest of this slice. Raises SlabFull."""
    while True:
        try:
            engine.budget.set_aside(size, by=None)
            return
        except SlabFull:
            blocked = engine.room.wait_for(session, size)
            if blocked is None:
                raise
        yield blocked


def fetched(engine: Engine, session: Session, storages: Sequence[Blob]) -> Generator[Blocked | None, None, None]:
    """Steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
    return engine.older_stops.fetch(storages, lambda need: engine.room.wait_for(session, need))
