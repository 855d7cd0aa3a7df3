"""Work that belongs to no request: after each slice, and when the engine is idle. Answers nothing."""

from __future__ import annotations

from djinn_jupyter.engine.loop.publisher import Accounting, StatePublisher
from djinn_jupyter.engine.loop.scheduler import Scheduler
from djinn_jupyter.engine.memory.weights.residence import IdleSleep
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.remote.engine.requests_moving import SessionMoves


class Upkeep:
    """An error in one piece of work is a fault, and the others are done all the same."""

    def __init__(
        self,
        accounting: Accounting,
        idle_sleep: IdleSleep,
        state_publisher: StatePublisher,
        *,
        sessions: SessionTable,
        persistence: Persistence,
        residency: Residency,
        moves: SessionMoves,
        scheduler: Scheduler,
        faults: Faults,
    ) -> None:
        self._accounting, self.idle_sleep, self._state_publisher = accounting, idle_sleep, state_publisher
        self._sessions, self._persistence, self._residency = sessions, persistence, residency
        self.moves = moves
        self._scheduler, self._faults = scheduler, faults
        self._checked = True  # the accounting, since the last work

    @property
    def watchful(self) -> bool:
        """True while some session could be evicted, evicted ones left memory to give back, or a session is not yet in
        the journal; the daemon then ticks every second instead of every five."""
        return bool(self._persistence.unkept) or self._residency.has_to_look

    @property
    def due_in(self) -> float:
        """The seconds until work comes due that cannot wait for the next tick; infinite where there is none."""
        return self._residency.due_in

    def rest(self) -> None:
        """Do what an idle engine does."""
        if not self._checked and not len(self._scheduler):
            self._accounting.check_in_turn()
        with self._faults.during("it rested"):
            self._residency.rest()
        with self._faults.during("it settled moves of sessions"):
            self.moves.settle_old()
        self._state_publisher.recount_people()

    def move_sessions(self) -> None:
        """Bring back the sessions that are expected, and make room for stops."""
        with self._faults.during("it brought back sessions that are expected"):
            self._residency.fetch_returning()
        with self._faults.during("it made room for stops"):
            self._residency.relieve()

    def look_around(self, busy: bool) -> None:
        """Do what is due after each slice."""
        self._checked = not busy
        with self._faults.during("it put the weights to sleep"):
            self.idle_sleep.tell(busy)
        with self._faults.during("it looked at what other programs need"):
            self._residency.heed(self._state_publisher.outside)
        self._accounting.require_sound()
        with self._faults.during("it wrote the journal"):
            self._persistence.attend(self._sessions, idle=not busy)
        with self._faults.during("it told of the journal"):
            self._state_publisher.heed_journal(self._persistence.trouble, self._persistence.unkept)
