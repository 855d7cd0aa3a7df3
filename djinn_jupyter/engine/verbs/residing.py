"""Sessions leave the device and come back because somebody asks, or because of what a notebook does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.scheduler import Steps
from djinn_jupyter.engine.session import Session
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Noted, Swapped

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def swap_out(engine: Engine, request: ask.SwapOut, holder: Holder) -> Steps:
    session = engine.session(request.session)
    engine.swapping.tiers.keeper(request.tier)
    if session.state == "running":
        raise IllegalMove(f"Session {session.name!r} is running; pause it before it leaves the device.")
    yield from engine.settled(session)
    before = session.residence.last_transfer
    engine.swapping.swap_out(session, request.tier, "asked")
    yield from engine.settled(session)
    return _swapped(session, before)


def swap_in(engine: Engine, request: ask.SwapIn, holder: Holder) -> Steps:
    session = engine.session(request.session)
    before = session.residence.last_transfer
    if session.residence.present:
        return Swapped(session=session.describe(), transfer=None)
    engine.swapping.swap_in(session, "asked")
    yield from engine.settled(session)
    return _swapped(session, before)


def note(engine: Engine, request: ask.Note, holder: Holder) -> Noted:
    """Anyone may say what a notebook does: its kernel, or the server that its window belongs to."""
    session = engine.session(request.session)
    if request.activity == "in_use":
        _use(engine, session, holder)
    engine.notebooks.note(session, request.activity)
    return Noted()


def _use(engine: Engine, session: Session, holder: Holder) -> None:
    """Of all sessions this one is what the holder's magics act on."""
    for other in engine.sessions.values():
        if other.used_by == holder.name:
            other.used_by = None
            engine.bulletin.touch(other.name)
    session.used_by = holder.name


def _swapped(session: Session, before: Transfer | None) -> Swapped:
    if session.residence.error is not None:
        raise session.residence.error
    transfer = session.residence.last_transfer
    return Swapped(session=session.describe(), transfer=None if transfer is before else transfer)
