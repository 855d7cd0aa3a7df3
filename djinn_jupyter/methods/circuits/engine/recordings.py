"""The pairs of lines that circuits of a session are run on, recorded once: kept until the session closes, or until
others need their memory. Used on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.requests.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.runtime import Space
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.methods.circuits.engine.line_record import LineRecord

Pair = tuple[LineRecord, LineRecord]
Record = Callable[[Reservation], Generator[Blocked | None, None, Pair]]


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedPair:
    """A recorded pair of lines and the bytes that it holds. While it is `used` it cannot be dropped."""

    pair: Pair
    room: Reservation
    used: bool = False

    @contextmanager
    def in_use(self) -> Iterator[Pair]:
        self.used = True
        try:
            yield self.pair
        finally:
            self.used = False


class Recordings:
    """Recordings by session, and by what each was computed from."""

    def __init__(self, budget: Budget, space: Space) -> None:
        self.workspace = Workspace(budget, space, "edges", idle=self._idle, release=self._release)
        self._kept: dict[str, dict[Hashable, RecordedPair]] = {}

    def of(
        self, session: Session, computed_from: Hashable, record: Record
    ) -> Generator[Blocked | None, None, RecordedPair]:
        """Return the recording of a pair of lines, made by `record` where there is none. Raises as that does."""
        own = self._kept.setdefault(session.name, {})
        if computed_from not in own:
            room = Reservation(self.workspace, session)
            try:
                pair = yield from record(room)
            except BaseException:
                room.give_back(room.held)
                raise
            own[computed_from] = RecordedPair(pair=pair, room=room)
        return own[computed_from]

    def let_go(self, session: Session) -> None:
        """Drop the recordings of a session that has closed."""
        for one in self._kept.pop(session.name, {}).values():
            one.room.give_back(one.room.held)

    def _idle(self) -> int:
        return sum(one.room.held for own in self._kept.values() for one in own.values() if not one.used)

    def _release(self) -> int:
        released = self._idle()
        for own in self._kept.values():
            for computed_from in [key for key, one in own.items() if not one.used]:
                room = own.pop(computed_from).room
                room.give_back(room.held)
        return released
