"""A line as a user gives it, a text, token ids or a session, as requests have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    from djinn_jupyter.client.engine import RemoteEngine
    from djinn_jupyter.methods.sweep.request import LineSource


def line_source(engine: RemoteEngine, given: object) -> LineSource:
    """Return a line as a request has it: a session's name, or token ids. Raises UsageError for a session of another
    engine, where one of that name may have another line, and for a line without tokens."""
    if isinstance(given, RemoteSession):
        here, there = engine.channel, given.channel
        if there is not here and there.welcome.engine != here.welcome.engine:
            raise UsageError(
                f"Session {in_quotes(given.label)} is at another engine than this; give its text or its tokens."
            )
        return given.name
    tokens = engine.tokenize(given).tokens if isinstance(given, str) else token_ids(given)
    if not tokens:
        raise UsageError("A line has no tokens; give a text or token ids, or a session.")
    return tokens
