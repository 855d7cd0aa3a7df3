"""The choice of sessions to evict: for want of pages, and after a while without use. Moves nothing itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.weights.host_weights import HOST, return_freed
from djinn_jupyter.engine.residency.activity import free_bytes, private_bytes
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.residency.owner_budgets import OwnerBudgets
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.residence import Cause
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import Tier

log = logging.getLogger(__name__)

WRITE_THROUGH_SECONDS: Final = 1.0  # of rest before copies are made: a step at once would make them stale

GIVE_BACK_SECONDS: Final = 3.0  # without a change before memory of evicted sessions is released

Of = Callable[[Session], bool]  # True for the chosen sessions
Choice = Callable[[Sequence[Session], int], Sequence[Session]]


def everyone(session: Session) -> bool:
    """Return True: all sessions are meant."""
    return True


def same_person(wanting: Session) -> Of:
    """Return the function that is True for the sessions of the same person."""
    person = person_of(wanting.name)
    return lambda session: person_of(session.name) == person


class Eviction:
    """Finds room on the device. `choose` orders the sessions to evict for so many bytes. Sessions in `waiting` have
    queued requests. `others_go_on` is True where another session's job has work. `at_work` has the sessions of all
    jobs, including those not in the table yet. `is_expected` is True where the session has announced its return within
    so many seconds."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        budget: Budget,
        swapping: Swapping,
        owner_budgets: OwnerBudgets | None = None,
        *,
        idle_seconds: float,
        waiting: Container[Session] = (),
        others_go_on: Callable[[Session, Of], bool] = lambda session, of: False,
        at_work: Callable[[], Iterable[Session]] = tuple,
        is_expected: Callable[[Session, float], bool] = lambda session, within: False,
        choose: Choice = lambda candidates, need: by_last_use(candidates),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions, self._waiting, self._budget = sessions, waiting, budget
        self._others_go_on, self._at_work, self._is_expected = others_go_on, at_work, is_expected
        self._idle_seconds, self._choose, self._clock = idle_seconds, choose, clock
        self.swapping = swapping
        self._owner_budgets = owner_budgets or OwnerBudgets(sessions, swapping.storage_table)
        self._changes, self._changed = 0, clock()

    def find(self, wanting: Session, need: int) -> bool:
        """Evict other sessions until the bytes missing for `need` (at least one session's) are on their way out. Return
        True when there is room now or waiting for the next change helps; False when no session can leave, none is at
        work, and no copy is in progress, whose end would free a closed session's memory."""
        if self.swapping.sweep() or self._gathered(need):
            self.swapping.note_change()
            return True
        short = max(need - free_bytes(self.swapping.slabs, self._budget), 1)
        return self._have_leave(short, wanting) > 0 or self._others_progress(wanting) or self.swapping.tiers.moving

    def in_owner_budget(self, wanting: Session, need: int, *, instead: bool = False) -> bool:
        """Return True where the session's person may have `need` more bytes on the device, or so many `instead` of its
        present ones. Otherwise make that person's other sessions leave, and return False: waiting for the next change
        helps. Raises OverQuota where none can leave and none is at work."""
        short = self._owner_budgets.short(wanting, need, instead=instead)
        if not short:
            return True
        own = same_person(wanting)
        if self._have_leave(short, wanting, own) > 0 or self._others_progress(wanting, own):
            return False
        raise self._owner_budgets.refusal(wanting, need)

    def _gathered(self, need: int) -> bool:
        """Shrink the slabs, because free page slots are useless to tensors. Return True where `need` then fits."""
        return need > self._budget.free and self.swapping.shrink() > 0 and need <= self._budget.free + self._budget.lent

    def relieve(self) -> bool:
        """Evict older stops and sessions after a stop or an edit overdrew the budget. Return False if none can."""
        if not self._budget.overdrawn:
            return True
        if self._budget.relieve():
            self.swapping.shrink()
        if not (over := self._budget.overdrawn):
            self.swapping.note_change()
            return True
        return self._have_leave(over, None) > 0

    def _have_leave(self, short: int, wanting: Session | None, of: Of = everyone) -> int:
        """Evict older stops first, then sessions. Return the bytes that have left or are on their way out."""
        coming = self._on_the_way_out(of)
        if coming < short:
            coming += self.swapping.push_out(short - coming, of)
        may = [session for session in self.swapping.candidates(wanting) if of(session)] if coming < short else []
        idle = self._choose(may, short - coming) if may else ()
        giving_way = (one for one in self._waiting_since(wanting) if of(one) and self.swapping.may_give_way(one))
        for victim in chain(idle, giving_way):
            if coming >= short:
                break
            size = private_bytes(victim, self.swapping.storage_table)
            if size and self._send_away(victim, "pressure"):
                coming += size
        return coming if wanting is None else coming + self._ask_back(short - coming, wanting, of)

    def earlier_waits(self, wanting: Session, of: Of = everyone) -> bool:
        """True where another session waits for room with an earlier request."""
        return any(one.residence.in_line and of(one) for one in self._earlier(wanting))

    def earlier_has_room(self, wanting: Session) -> bool:
        """True where another session's work that began earlier waits for room, or has reserved some."""
        return any(one.residence.in_line or one.residence.reserved for one in self._earlier(wanting))

    def _earlier(self, wanting: Session) -> Iterator[Session]:
        since = wanting.residence.asked_since
        return (one for one in self._all() if one is not wanting and one.residence.asked_since < since)

    def _all(self) -> Iterator[Session]:
        """Yield the sessions, including those at work that are not in the table yet."""
        yield from self._sessions.values()
        yield from (one for one in self._at_work() if one.name not in self._sessions)

    def _waiting_since(self, wanting: Session | None) -> list[Session]:
        """Return the sessions that wait for room with a later request than `wanting`, the last one first."""
        since = -1.0 if wanting is None else wanting.residence.asked_since
        waiting = [one for one in self._all() if one.residence.in_line and one.residence.asked_since > since]
        return sorted(waiting, key=lambda one: one.residence.asked_since, reverse=True)

    def _ask_back(self, short: int, wanting: Session, of: Of) -> int:
        """Request the reservations of work waiting since after `wanting`'s, until that suffices. Return the bytes."""
        asked = 0
        for one in filter(of, self._waiting_since(wanting)):
            if asked < short and one.residence.reserved:
                asked += one.residence.reserved
                if not one.residence.asked_back:
                    one.residence.ask_back()
                    self.swapping.note_change()
        return asked

    def clear(self, need: int) -> int:
        """Evict older stops and sessions for other programs until `need` bytes are leaving. Return how many."""
        return self._have_leave(need, None)

    def _on_the_way_out(self, of: Of) -> int:
        going = [s for s in self._sessions.values() if s.residence.state == "storing" and of(s)]
        return sum(max(private_bytes(session, self.swapping.storage_table), 1) for session in going)

    def _others_progress(self, wanting: Session, of: Of = everyone) -> bool:
        """True where another session's work, or its load to the device, will end without further room, also where
        earlier work waits for room too: that continues first."""
        if self._others_go_on(wanting, of) or self.earlier_waits(wanting, of):
            return True
        for session in filter(of, self._sessions.values()):
            here = session.residence
            if session is wanting:
                continue
            if here.moving is not None and here.state == "loading" and not here.moving.waits_for_room:
                return True
            if session in self._waiting and here.present and session.work is None and not here.wants_room:
                return True
        return False

    def _send_away(self, session: Session, cause: Cause) -> bool:
        """Swap the session out to the first tier that takes it. Return True where it has left or is leaving."""
        for tier in self._tiers_for(session, cause):
            try:
                self.swapping.swap_out(session, tier, cause)
            except DjinnError as error:
                log.info("Session %r stays on the device: %s", session.name, error)
                continue
            if session.residence.state != "resident":
                return True
        return False

    def _tiers_for(self, session: Session, cause: Cause) -> list[Tier]:
        """Return the tiers that may take the session, first those within its person's budget: others need the device,
        even for a session without such a tier."""
        names = self.swapping.tiers.names
        granted = [tier for tier in names if self._owner_budgets.takes(session, tier)]
        return granted if cause != "pressure" else [*granted, *(tier for tier in names if tier not in granted)]

    def attend(self) -> None:
        """Work for an idle engine: write resting sessions through, swap out those that have rested for long, and
        release memory that no session took."""
        now = self._clock()
        if self.swapping.changes != self._changes:
            self._changes, self._changed = self.swapping.changes, now
        elif self.swapping.gives_back and now - self._changed >= GIVE_BACK_SECONDS:
            self.swapping.shrink()
            return_freed(HOST)  # and glibc's freed memory of their stops and of the move
        for session in self.swapping.candidates():
            rested = now - session.residence.touched
            if rested >= self._idle_seconds and not self._is_expected(session, self._idle_seconds):
                self._let_go(session, "idle detected: session %r, %.3f s without use", rested)
            elif rested >= WRITE_THROUGH_SECONDS:
                self._write_through(session)

    def begin_rest(self, session: Session, seconds: float) -> None:
        """Begin a rest with this announced length. Whatever idleness would do before its end is done at once."""
        if not self.swapping.is_candidate(session):
            return
        if seconds >= self._idle_seconds:
            self._let_go(session, "rest announced: session %r, %.3f s", seconds)
        elif seconds >= WRITE_THROUGH_SECONDS:
            self._write_through(session)

    def _write_through(self, session: Session) -> None:
        if self._owner_budgets.takes(session, "host"):
            self.swapping.write_through(session)

    def _let_go(self, session: Session, why: str, seconds: float) -> None:
        if session.residence.refused:
            return  # it could not leave in this version; the next change of the session is a reason to try again
        log.info(why, session.name, seconds)
        if not self._send_away(session, "idleness"):
            session.residence.refuse()


# Other programs on the device: when they need memory and little is left, sessions are evicted for them. Each reading
# of the device leads to one action: first unused memory is given back; where the next reading shows that was not
# enough, sessions are evicted; then the memory they left is given back, and so on.
