"""The requests that a person may make for another's session that is shared with them: each says so of itself."""

from __future__ import annotations

from djinn_jupyter.errors import UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.access import Access
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.texts import in_quotes


def not_shared(session: str) -> UnknownSession:
    """Return the error of one who asks for another's session that is not, or not any more, shared with them."""
    return UnknownSession(f"No session {in_quotes(session)} is shared with you.")


def require_granted(request: ask.Request, session: str, access: Access | None) -> None:
    """Raise UnknownSession where `session` is not shared, UsageError where a person with this access to it may not ask
    so."""
    if access is None:
        raise not_shared(session)
    needed = type(request).terms.shared
    if needed == "read" or needed == access:
        return
    owner = person_of(session)
    if needed == "write":
        raise UsageError(
            f"Session {in_quotes(session)} is shared with you to read: fork it (%djinn_fork) and work on that, or ask "
            f"{owner} to share it with --write."
        )
    raise UsageError(f"Session {in_quotes(session)} is shared with you; this is for {owner} alone, whose it is.")
