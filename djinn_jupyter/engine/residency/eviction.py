"""The choice of sessions to evict: for want of pages, and after a while without use. Moves nothing itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.memory.weights.host_weights import HOST, return_freed
from djinn_jupyter.engine.passes.controller import Admit
from djinn_jupyter.engine.residency.activity import free_bytes, private_bytes
from djinn_jupyter.engine.residency.eviction_policy import by_last_use
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.residence import Blocked, Cause, Pieces
from djinn_jupyter.engine.session.session import Session, copies_on_device, given_arrays, past_arrays
from djinn_jupyter.engine.session.table import Holdings, by_person, holdings_of, own_tensors, tensors_of_states
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.errors import DjinnError, OverQuota, SlabFull, UsageError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import OwnerBudget, Tier
from djinn_jupyter.wire.texts import in_quotes

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


# Device memory for everything that a session's work keeps there: pages, stops, states, columns, results, added
# modules.
#
# Every demand is met in this order: unused memory and working copies go, older stops leave, then idle sessions, then
# sessions whose own work waits for room and was begun later. Waiting work gives its place to earlier work and returns
# when there is room again. So the oldest work always continues, and work that fits alone does not fail beside others.

NO_TIER: Final = "There was no room for them on the device, nor in a tier (--host-memory, --disk-memory)."
Result = TypeVar("Result")


class PassRoom:
    """Bytes set aside for the tensors that one entry into a pass leaves: `always` for those of every pass, `expected`
    for those of a pass that stops, until it is known to keep more. `refused`: the last request for bytes failed;
    `keeps_more`: the pass was entered with room for less than it is now known to keep."""

    def __init__(self, budget: Budget, owner: object, always: int, expected: int) -> None:
        self._budget, self._owner, self._always = budget, owner, always
        self.need, self.refused = always + expected, False
        self._entered_with = self.need

    def open(self) -> None:
        """Set the bytes aside. Raises SlabFull."""
        self.refused, self._entered_with = True, self.need
        self._budget.set_aside(self.need, by=None)
        self.refused = False

    @property
    def keeps_more(self) -> bool:
        return self.need > self._entered_with

    def admit(self, kept: int) -> None:
        """Let a pass keep `kept` bytes when it is left. The working copy that it reads stays. Raises SlabFull."""
        self.need, self.refused = max(self.need, self._always + kept), True
        self._budget.set_aside(self._always + kept, by=self._owner)
        self.refused = False


class StopRoom:
    def __init__(self, budget: Budget, swapping: Swapping, eviction: Eviction) -> None:
        self._budget, self._swapping, self._eviction = budget, swapping, eviction

    def entered(
        self,
        session: Session,
        cache: PagedCache,
        pages: Callable[[], int],
        enter: Callable[[Admit], Result],
        *,
        always: int,
        expected: int,
    ) -> Generator[Blocked | None, None, Result]:
        room = PassRoom(self._budget, cache.owner, always, expected)

        def attempt() -> Result:
            room.open()
            return enter(room.admit)

        while True:
            try:
                return (yield from self.with_room(session, lambda: room.need + pages(), attempt, of_owner_budget=pages))
            except SlabFull:
                if not room.refused:
                    raise
            if not room.keeps_more:  # otherwise its working copy yields at the next entry
                self._drop_a_stop(session, room.need)
            yield None

    def _drop_a_stop(self, session: Session, need: int) -> None:
        """Drop the session's oldest stop. Raises SlabFull where there is none to drop."""
        history = session.history
        if not history.stops or history.present == 0:
            pages = session.cache.statistics()
            raise SlabFull(
                f"The stop keeps {spell_bytes(need)} on the device beside {spell_bytes(pages.page_bytes)} of pages, "
                f"{self._budget.bound}"
            )
        history.drop_oldest(NO_TIER)
        self._swapping.storage_table.purge()

    def accounted(self, session: Session) -> None:
        """Account for the tensors of a slice, and return the rest of the bytes set aside for it."""
        states = tensors_of_states(session.cache.live_states())
        self._swapping.storage_table.note(chain(own_tensors(session), states, copies_on_device(session)))
        self.put_back()

    def put_back(self) -> None:
        """Release all bytes that are set aside."""
        self._budget.put_back()

    def set_aside_now(self, size: int) -> None:
        """Set `size` bytes aside for the rest of this slice. Raises SlabFull."""
        self._budget.set_aside(size, by=None)

    def with_room(
        self,
        session: Session,
        need: Callable[[], int],
        attempt: Callable[[], Result],
        *,
        of_owner_budget: Callable[[], int] = lambda: 0,
    ) -> Generator[Blocked | None, None, Result]:
        """Call `attempt` until it finds room; return its result. Between calls others free room for `need` bytes, and
        the session itself may leave the device and return. `of_owner_budget` are the bytes that its person has to be
        allowed first. Raises SlabFull where no room can be freed, OverQuota, and errors of returning."""
        try:
            while True:
                before = self._swapping.changes
                within = self._eviction.in_owner_budget(session, of_owner_budget())
                session.residence.note_over_budget(within)
                if within:
                    try:
                        return attempt()
                    except SlabFull:
                        self.put_back()
                        if not self._eviction.find(session, need()):
                            raise
                if session.residence.park():
                    self._swapping.note_change()  # earlier work may have this session's place
                    before += 1
                yield from self._change(session, before)
                yield from self._back(session)
        finally:
            self._unpark(session)

    def behind_earlier(self, session: Session) -> Pieces:
        """Run steps of yielding work until no earlier work waits for room or has reserved some."""
        session.residence.park()
        self._swapping.note_change()  # the returned bytes are there
        try:
            while self._eviction.earlier_has_room(session):
                yield from self._change(session, self._swapping.changes)
            yield from self._back(session)
        finally:
            self._unpark(session)

    def _unpark(self, session: Session) -> None:
        if session.residence.unpark():
            self._swapping.note_change()  # later requests may have room now

    def _change(self, session: Session, before: int) -> Pieces:
        """Wait for the next change. Raises GaveWay where earlier work has requested the session's reservation."""
        session.residence.require_unasked()  # it may have been requested during a move
        yield lambda: self._swapping.changes == before
        session.residence.require_unasked()

    def _back(self, session: Session) -> Pieces:
        """Run steps until the session, which may have left while its work waited, is on the device. It returns once no
        earlier work waits for room, which would otherwise make it leave again."""
        here = session.residence
        while not here.present:
            if not here.settled:
                yield lambda: not here.settled
            elif self._eviction.earlier_waits(session):
                yield from self._change(session, self._swapping.changes)
            else:
                self._swapping.swap_in(session, "needed")
                yield lambda: not here.settled
                if not here.present and here.error is not None:
                    raise here.error

    def set_aside(self, session: Session, size: int, *, of_owner_budget: int = 0) -> Pieces:
        yield from self.with_room(
            session, lambda: size, lambda: self.set_aside_now(size), of_owner_budget=lambda: of_owner_budget
        )

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        """Run steps until the pinned storages of a stop are on the device. Raises SlabFull and StorageFailed."""
        older = self._swapping.older_stops

        def need() -> int:
            return sum(storage.nbytes for storage in storages if not storage.resident)

        while need():
            batches = yield from self.with_room(session, need, lambda: older.load(storages))
            yield lambda: any(storage.moving for storage in storages)
            older.require_loaded(batches)


# Other programs on the device: when they need memory and little is left, sessions are evicted for them. Each reading
# of the device leads to one action: first unused memory is given back; where the next reading shows that was not
# enough, sessions are evicted; then the memory they left is given back, and so on.

HEADROOM: Final = 20  # a twentieth of the device is to be free when other programs have grown


class ExternalPressure:
    """Only memory that other programs took since the engine's start counts as their need: an engine that was allowed
    nearly all of the device does not evict its sessions for want of headroom."""

    def __init__(self, sessions: Mapping[str, Session], eviction: Eviction, swapping: Swapping, begun: Usage) -> None:
        self._sessions, self._eviction, self._swapping = sessions, eviction, swapping
        self._last = begun
        self._least = begun.other_bytes or 0
        self._gave_back = False

    def apply(self, usage: Usage) -> None:
        """Act on a reading, once."""
        if usage is self._last or usage.other_bytes is None:
            return
        self._last, self._least = usage, min(self._least, usage.other_bytes)
        need = min(_short(usage), usage.other_bytes - self._least)
        if need <= 0:
            self._gave_back = False
        elif self._gave_back:
            self._eviction.clear(need)
            self._gave_back = False
        else:
            self._give_back()

    def _give_back(self) -> None:
        for session in self._sessions.values():
            if session.work is None:
                session.cache.drop_working()
        self._swapping.shrink()
        self._gave_back = True


def _short(usage: Usage) -> int:
    """Return the bytes missing for the headroom; 0 or less where none are."""
    if usage.device_total is None or usage.device_in_use is None:
        return 0
    return usage.device_total // HEADROOM - (usage.device_total - usage.device_in_use)


# The memory budget of each owner: the bytes still allowed, and the sentence of a refusal. Moves nothing.
#
# The engine's own user has no budget. The device memory of an owner is checked whenever one of its sessions takes
# pages. An excess makes other sessions of the same owner leave the device, never another's. Sessions that leave go to
# host and disk. They are never refused there, which would keep them on the device, but the owner may create nothing
# more until the total is lower.

BudgetOf = Callable[[str], OwnerBudget]
NO_BUDGET: Final = OwnerBudget()


class AwaitedRoom(SlabFull):
    """Sessions of the same person are leaving the device: the request waits for them. Never shown to a client."""


def ask_for_more(person: str) -> str:
    """Return the end of every refusal."""
    return f"ask the engine's user for more (`djinn quota {person}`)"


class OwnerBudgets:
    """`saved` has the bytes of a person's checkpoints, which count for the disk, and `added` those of the modules and
    adapters that the person added, which count for the device."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        storage_table: StorageTable,
        saved: Callable[[str], int] = lambda person: 0,
        added: Callable[[str | None], int] = lambda person: 0,
    ) -> None:
        self._sessions, self._storage_table = sessions, storage_table
        self._saved, self.added = saved, added
        self._budget_of: BudgetOf | None = None
        self.require_reader: Callable[[str], None] = lambda person: None

    def use(self, budget_of: BudgetOf, require_reader: Callable[[str], None] | None = None) -> None:
        """Apply `budget_of` to every person at each check. `require_reader` refuses one with too many unread
        replies."""
        self._budget_of = budget_of
        self.require_reader = require_reader or self.require_reader

    def of(self, person: str | None) -> OwnerBudget:
        return NO_BUDGET if person is None or self._budget_of is None else self._budget_of(person)

    def short(self, session: Session, need: int, *, instead: bool = False) -> int:
        """Return the bytes of `need` that exceed the person's device budget now: 0 where all are granted. `instead`: in
        place of the session's own."""
        person = person_of(session.name)
        most = self.of(person).device
        if most is None or person is None or not need:
            return 0
        most -= self.added(person)
        held = self._held(person, lambda held: held.on_device + need <= most, session if instead else None)
        return max(0, held.on_device + need - most)

    def require_given(self, need: int, most: int) -> None:
        """Raise UsageError where rules and edits of all sessions would have more than `most` bytes of arrays with so
        many more: they stay in main memory, and in the journal, until they are removed; for a rule with past passes,
        until the session runs another prompt."""
        sessions = self._sessions.values()
        each = (array for one in sessions for array in (*given_arrays(one), *past_arrays(one)))
        given = {id(array): array.nbytes for array in each}
        if (held := sum(given.values())) + need > most:
            raise UsageError(
                f"The arrays of rules and edits take {spell_bytes(held)} and {spell_bytes(need)} more are needed; all "
                f"sessions may have {spell_bytes(most)} of them. Remove rules, close a session, or allow more device "
                "memory."
            )

    def refusal(self, session: Session, need: int) -> OverQuota:
        """Return the error where the session's person may not have `need` bytes, and no session of theirs can leave."""
        person = person_of(session.name)
        assert person is not None
        most, held = self.of(person).device, self._held(person, lambda held: False)
        added = self.added(person)
        remove = ", remove an added module or adapter" if added else ""
        remove += ", remove a rule or an edit" if held.given else ""
        used = spell_bytes(held.on_device + added)
        return OverQuota(
            f"{person}'s quota of device memory is {spell_bytes(most or 0)}: {used} are held and {spell_bytes(need)} "
            f"more are needed, with no other session that can leave. Close a session, run fewer tokens{remove}, or "
            f"{ask_for_more(person)}."
        )

    def takes(self, session: Session, tier: Tier) -> bool:
        """True where the session's person may have all of it in the tier."""
        person = person_of(session.name)
        most = None if person is None else self._most(person, tier)
        if person is None or most is None:
            return True
        new = holdings_of([session], self._storage_table)
        held, more = self._used(person, tier), new.device if tier == "host" else max(new.device, new.host)
        return held + more <= most

    def require_place(self, session: Session, tier: Tier) -> None:
        """Raise OverQuota where the session's person may not have all of it in the tier."""
        person = person_of(session.name)
        if person is not None and not self.takes(session, tier):
            most, used = spell_bytes(self._most(person, tier) or 0), spell_bytes(self._used(person, tier))
            raise OverQuota(
                f"{person}'s quota of {tier} memory is {most}, of which {used} are held, so "
                f"{in_quotes(session.name)} stays where it is. Close a session, or {ask_for_more(person)}."
            )

    def require_less(self, person: str, *, more_on_disk: int = 0, but: Session | None = None) -> None:
        """Raise OverQuota where a person has more on host or disk than allowed, or would with so many bytes more. The
        session `but` does not count: it gives up its memory."""
        for tier, more in (("host", 0), ("disk", more_on_disk)):
            most = self._most(person, "host" if tier == "host" else "disk")
            if most is None:
                continue
            used = self._used(person, "host" if tier == "host" else "disk", but)
            if used + more > most:
                needs = f" and {spell_bytes(more)} more are needed" if more else ""
                drop = ", drop a checkpoint" if tier == "disk" else ""
                raise OverQuota(
                    f"{person}'s quota of {tier} memory is {spell_bytes(most)}: {spell_bytes(used)} are held{needs}. "
                    f"Close a session{drop}, or {ask_for_more(person)}."
                )

    def _most(self, person: str, tier: Tier) -> int | None:
        budget = self.of(person)
        return budget.host if tier == "host" else budget.disk

    def _used(self, person: str, tier: Tier, but: Session | None = None) -> int:
        held = self._held(person, lambda held: False, but)
        return held.host if tier == "host" else held.disk + self._saved(person)

    def _held(self, person: str, enough: Callable[[Holdings], bool], but: Session | None = None) -> Holdings:
        """Return a person's bytes. If the bytes of all their sessions, shared or not, are little `enough`, the sessions
        of others are not examined."""
        counted = [session for session in self._sessions.values() if session is not but]
        own = holdings_of((one for one in counted if person_of(one.name) == person), self._storage_table)
        return own if enough(own) else by_person(counted, self._storage_table).get(person, Holdings())
