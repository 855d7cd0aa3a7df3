"""Whose a session is: what one client may end without being told to twice. One rule, for the magics and for Python."""

from __future__ import annotations

from djinn_jupyter.client.naming import is_another_notebooks, label
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire.nouns import SessionDescription


def require_own(session: SessionDescription, holder: str, deed: str, *, force: bool) -> None:
    """SessionsWouldSuffer, unless `force`, where another kernel than `holder` has the session open or its name is
    another notebook's path: after an engine has died nobody holds it, and its notebook still works with it."""
    if force:
        return
    if is_another_notebooks(session.name):
        whose = f"another notebook's ({session.name})"
    elif is_held_elsewhere(session, holder):
        whose = "open in another kernel"
    else:
        return
    raise SessionsWouldSuffer(
        f"Session {label(session.name)!r} is {whose}; to {deed} all the same, add --force (in Python force=True)."
    )


def is_held_elsewhere(session: SessionDescription, holder: str) -> bool:
    return session.holder not in (None, holder)
