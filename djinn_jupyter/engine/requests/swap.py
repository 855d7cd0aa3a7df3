"""Move sessions off the device and back, because a client asks or because of what a notebook does."""

from __future__ import annotations

from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Described, Noted, Swapped
from djinn_jupyter.wire.texts import in_quotes


class SwapRequests:
    def __init__(self, sessions: SessionTable, residency: Residency) -> None:
        self._sessions, self._residency = sessions, residency

    @handles(ask.SwapOut)
    def swap_out(self, request: ask.SwapOut, session: Session, holder: Holder) -> Steps[Swapped]:
        self._residency.require_tier(request.tier)
        self._residency.quotas.require_place(session, request.tier)
        if session.state == "running":
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it before it leaves the device.")
        yield from self._residency.settled(session)
        before = session.residence.last_transfer
        self._residency.swap_out(session, request.tier)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.SwapIn)
    def swap_in(self, request: ask.SwapIn, session: Session, holder: Holder) -> Steps[Swapped]:
        before = session.residence.last_transfer
        if session.residence.present:
            return Swapped(session=reports.describe(session), transfer=None)
        self._residency.swap_in(session)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.Rest)
    def rest(self, request: ask.Rest, session: Session, holder: Holder) -> Described:
        self._residency.announce_rest(session, request.expected_seconds)
        return Described(session=reports.describe(session))

    @handles(ask.Note)
    def note(self, request: ask.Note, session: Session, holder: Holder) -> Noted:
        """Note what a notebook does. Any client may say so: its kernel, or the server that its window belongs to."""
        if request.activity == "in_use":
            self._use(session, holder)
        self._residency.note(session, request.activity)
        return Noted()

    def _use(self, session: Session, holder: Holder) -> None:
        """Make this session, of all sessions, the one that the holder's magics act on."""
        for other in self._sessions.values():
            if other.used_by == holder.name:
                other.use(None)
                self._sessions.touch(other.name)
        session.use(holder.name)


def _swapped(session: Session, before: Transfer | None) -> Swapped:
    if session.residence.error is not None:
        raise session.residence.error
    transfer = session.residence.last_transfer
    return Swapped(session=reports.describe(session), transfer=None if transfer is before else transfer)
