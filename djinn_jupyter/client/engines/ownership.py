"""Ownership of sessions: which ones a client may end without `force`. One rule, for the magics and for Python."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from djinn_jupyter.client.engines.naming import is_another_notebooks, label, told_apart
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire.nouns import SessionDescription


def require_own(session: SessionDescription, holder: str, deed: str, *, force: bool) -> None:
    """Raise SessionsWouldSuffer, unless `force`, where a kernel other than `holder` has the session open or its name is
    another notebook's path: after an engine's death a session has no holder, but its notebook still uses it."""
    if force:
        return
    if is_another_notebooks(session.name):
        whose = f"another notebook's ({PurePosixPath(*PurePosixPath(session.name).parts[-2:])})"
    elif is_held_elsewhere(session, holder):
        whose = "open in another kernel"
    else:
        return
    raise SessionsWouldSuffer(
        f"Session {label(session.name)!r} is {whose}; to {deed} all the same, add --force (in Python force=True)."
    )


def require_all_own(sessions: Collection[SessionDescription], holder: str, *, force: bool) -> None:
    """Raise SessionsWouldSuffer, unless `force`, where one of these sessions, which are to end for good, belongs to
    another notebook or is open in another kernel."""
    shown = told_apart(one.name for one in sessions)
    others = [shown[s.name] for s in sessions if is_another_notebooks(s.name) or is_held_elsewhere(s, holder)]
    if others and not force:
        raise SessionsWouldSuffer(
            f"Sessions of other notebooks would end for good: {', '.join(others)}; to stop the engine all the same, "
            "add --force (in Python force=True), or leave out --forget: then the next load brings them back."
        )


def is_held_elsewhere(session: SessionDescription, holder: str) -> bool:
    return session.holder not in (None, holder)
