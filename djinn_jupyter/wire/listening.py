"""Events: who hears them, and that some were not heard."""

from __future__ import annotations

from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.limits import OwnName
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase


class Listen(RequestBase, frozen=True, tag="Listen"):
    """Send this client the events of a session, None for those of all sessions. Asked twice it is as asked once."""

    session: OwnName | None = None


class Unlisten(RequestBase, frozen=True, tag="Unlisten"):
    """Send no more events of what a Listen has named."""

    session: OwnName | None = None


class Listening(ReplyBase, frozen=True, tag="Listening"):
    """From here on the client hears the events, or no longer. `events` is the number of the latest one."""

    events: int = 0


class EventsMissed(EventBase, frozen=True, tag="EventsMissed"):
    """Events for this client were dropped, of any session (`session` is empty): it did not read them for too
    long, or its line was lost for too long."""
