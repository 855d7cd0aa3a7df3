"""Whose a session is: what this notebook may end without being told to twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.magics.lazily import naming

if TYPE_CHECKING:
    from djinn_jupyter.client.engine import RemoteEngine
    from djinn_jupyter.wire.nouns import SessionDescription


def require_own(engine: RemoteEngine, session: SessionDescription, deed: str, *, force: bool) -> None:
    """SessionsWouldSuffer, unless `force`, where another kernel holds the session or its name is another notebook's
    path: after an engine has died nobody holds it, and its notebook still works with it."""
    if force:
        return
    if naming.is_another_notebooks(session.name):
        whose = f"another notebook's ({session.name})"
    elif is_held_elsewhere(engine, session):
        whose = "open in another kernel"
    else:
        return
    raise SessionsWouldSuffer(
        f"Session {naming.label(session.name)!r} is {whose}; to {deed} all the same, add --force."
    )


def is_held_elsewhere(engine: RemoteEngine, session: SessionDescription) -> bool:
    return session.holder not in (None, engine.holder)
