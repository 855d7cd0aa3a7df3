"""The refusal of requests that only a session's own notebook may make, or only its person; and of those for which the
budget of an owner does not suffice. Each is one rule for every request.

The rule is the engine's, because a rule of the client's is one that an HTTP request goes past. Runs and edits are free
for all: who makes them has entered the session with --join, or clicks on it where two people look together."""

from __future__ import annotations

import time
from typing import Any, Final

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.loop.scheduler import Job
from djinn_jupyter.engine.residency.owner_budgets import AwaitedRoom, ask_for_more
from djinn_jupyter.engine.session.session import Session, arrays_within
from djinn_jupyter.engine.session.table import refusal
from djinn_jupyter.errors import OverQuota, SessionsWouldSuffer, UsageError
from djinn_jupyter.remote.engine.persons import require_granted
from djinn_jupyter.units import spell_duration
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import is_anothers, person_of, sessions_in
from djinn_jupyter.wire.texts import distinct_labels

MOST_SESSIONS: Final = 5000  # of a person: an empty one has 10 KB of main memory, and 4 KiB of disk in a journal
LOOK_SECONDS: Final = 0.1  # between checks of the running time of a job


class Owners(BuiltOfParts):
    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._running_time, self._memory = parts.running_time, parts.residency.owner_budgets
        self._clock, self._looked = time.monotonic, time.monotonic()

    def require_shared(self, request: ask.Request, sender: Holder) -> None:
        """Raise UsageError or UnknownSession where the request is about another person's session and not granted."""
        if sender.person is not None:
            for name in sessions_in(request).values():
                self._require_granted(request, name, sender.person)

    def _require_granted(self, request: ask.Request, name: str, person: str) -> None:
        if person_of(name) == person:
            return
        session = self._sessions.get(name)
        require_granted(request, name, session.shares.access(person) if session is not None else None)

    def require_own(self, request: ask.Request, sender: Holder) -> None:
        """Raise SessionsWouldSuffer where the request would end something of another notebook, without `force`."""
        if not isinstance(request, ask.OwnerRequest) or request.force:
            return
        session, deed = self._sessions.get(request.session), request.deed
        if session is None or deed is None or self._residency.holder_has_gone(session):
            return
        asker = asker_of(request, sender, session)
        if is_anothers(session, asker.name, asker.notebook):
            shown = distinct_labels(self._sessions)[session.name]
            raise SessionsWouldSuffer(refusal(session, shown, deed))

    def require_budget(self, request: ask.Request, holder: Holder, session: Session | None) -> None:
        """Raise OverQuota where the caller may have no more sessions, memory or running time for this. The engine's own
        user always may, except for more than MOST_SESSIONS (UsageError, for others too) and arrays beyond the limit of
        all sessions."""
        terms = type(request).terms
        if session is not None and terms.keeps_arrays:
            self._require_given(session, sum(array.nbytes for array in arrays_within(request)))
        if holder.person is not None:
            self._memory.require_reader(holder.person)
        if self._makes_one(request):
            self._require_a_session(holder.person)
        if holder.person is None:
            return
        if terms.wakes_weights:
            self._require_time(holder.person)
        if terms.fills and isinstance(request, ask.SessionRequest):
            filled = request.made or request.session
            self._require_less(person_of(filled) or holder.person, session if request.forgets else None)

    def _require_given(self, session: Session, need: int) -> None:
        """Raise UsageError and OverQuota where rules and edits may not have so many more bytes of arrays, AwaitedRoom
        where other sessions of the person leave for them."""
        if not need:
            return
        self._residency.require_given(need)
        if not self._residency.in_owner_budget(session, need):
            raise AwaitedRoom("Other sessions of this person are leaving the device.")

    def require_room(self, request: ask.Request, session: Session | None, wanted: int) -> None:
        """Raise AwaitedRoom where the person's other sessions leave for a prompt's pages, OverQuota where none can."""
        if session is None or not isinstance(request, ask.Run):
            return
        if not self._residency.in_owner_budget(session, wanted, instead=request.forgets):
            raise AwaitedRoom("Other sessions of this person are leaving the device.")

    def pause_over_time(self, job: Job) -> None:
        """Pause the run of a person whose running time is used up meanwhile. OverQuota for other work, which is
        repeatable."""
        now = self._clock()
        if job.for_request is None or job.asker is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._left(job.asker) > 0 or isinstance(job.for_request.request, ask.SettleMove):  # a move has to end
            return
        if job.kind != "run":
            self._require_time(job.asker)
        elif job.session.pause_requested is None:
            job.session.request_pause("quota")

    def _require_less(self, person: str, but: Session | None = None) -> None:
        """Raise OverQuota where a person has too much on host or disk, even without copies of device data."""
        try:
            self._memory.require_less(person, but=but)
        except OverQuota:
            if not self._residency.drop_copies(person):
                raise
            self._memory.require_less(person, but=but)

    def _require_a_session(self, person: str | None) -> None:
        most = self._memory.of(person).sessions
        asked = (job.for_request.request for job in self._scheduler.jobs if job.for_request and job.asker == person)
        there = sum(person_of(name) == person for name in self._sessions) + sum(map(self._makes_one, asked))
        if person is not None and most is not None and there >= most:
            raise OverQuota(
                f"{person}'s quota of sessions is {most}, and there are {there}: close one (%djinn_close), or "
                f"{ask_for_more(person)}."
            )
        if there >= MOST_SESSIONS:
            raise UsageError(
                f"There are {there:,} sessions, the most that one person may have in an engine: close some "
                "(%djinn_close)."
            )

    def _makes_one(self, request: ask.Request) -> bool:
        """True where a session of a new name joins the others when the request is done."""
        return request.made is not None and request.made not in self._sessions

    def _require_time(self, person: str) -> None:
        if self._left(person) <= 0:
            most, used = self._memory.of(person).running or 0, self._running_time.seconds(person)
            raise OverQuota(
                f"{person}'s quota of running time is {spell_duration(most)} a day, and {spell_duration(used)} of the "
                f"last 24 hours are used: nothing is lost, go on later, or {ask_for_more(person)}."
            )

    def _left(self, person: str) -> float:
        most = self._memory.of(person).running
        return float("inf") if most is None else most - self._running_time.seconds(person)


def asker_of(request: ask.OwnerRequest[Any], sender: Holder, session: Session) -> Holder:
    """Return the holder that asks: the one that a server names, else the sender. A kernel with the session open has
    sent its notebook itself, with its path at that time: a server knows only the present one."""
    if request.for_holder is None and request.for_notebook is None:
        return sender
    opened = request.for_holder is not None and request.for_holder == session.holder
    notebook = session.holder_notebook if opened else request.for_notebook
    return Holder(name=request.for_holder or sender.name, user=sender.user, notebook=notebook)
