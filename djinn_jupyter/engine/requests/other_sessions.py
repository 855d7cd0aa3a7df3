"""Another session that a request reads beside its own."""

from __future__ import annotations

from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire.texts import in_quotes


def brought(session: Session, sessions: SessionTable, residency: Residency) -> Pieces:
    """Yield steps until the session's bytes are on the device. Raises the error that prevents it."""
    if not session.residence.present:
        residency.need(session)
        yield from residency.settled(session)
    if sessions.get(session.name) is not session or not session.residence.present:
        raise session.residence.error or UnknownSession(f"Session {in_quotes(session.name)} was closed meanwhile.")
