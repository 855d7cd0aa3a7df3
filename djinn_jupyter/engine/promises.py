"""A change of a session is in the journal before the reply to its request goes out; if it cannot be, the reply says so.

Knows requests and the journal, not how a verb does its work.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from djinn_jupyter.engine.persistence.persistence import Keeping
from djinn_jupyter.engine.requests.handles import Handlers
from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Reply

Answers = list[tuple[QueuedRequest, Reply]]


def keep(handlers: Handlers, keeping: Keeping, sessions: Mapping[str, Session], answers: Answers) -> Answers:
    """Write the sessions that the answered requests changed to the journal. Return the answers, marked `not_kept` where
    that failed."""
    keeping.write(sessions, [name for queued, _ in answers for name in _changed(handlers, queued.request)])
    unkept = keeping.unkept
    if not unkept:
        return answers
    return [
        (queued, _noted(reply, _changed(handlers, queued.request), unkept, keeping.trouble))
        for queued, reply in answers
    ]


def _changed(handlers: Handlers, request: ask.Request) -> tuple[str, ...]:
    """Return the names of the sessions that a request may have changed."""
    if not isinstance(request, ask.SessionRequest) or not handlers.needs(request).changes:
        return ()
    return (request.session, request.name) if isinstance(request, ask.Fork) else (request.session,)


def _noted(reply: Reply, changed: tuple[str, ...], unkept: frozenset[str], trouble: str | None) -> Reply:
    return replace(reply, not_kept=trouble) if unkept.intersection(changed) else reply
