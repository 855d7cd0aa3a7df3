"""Events: who hears them, and that some were not heard."""

from __future__ import annotations

from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.limits import SessionName
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase


class Listening(ReplyBase):
    """From here on the client hears the events, or no longer. `events` is the number of the latest one."""

    events: int = 0


class Unlisten(RequestBase[Listening], shared="read", unasked="view", small=True):
    """Send no more events of what a Listen has named."""

    session: SessionName | None = None


class Listen(RequestBase[Listening], shared="read", unasked="view"):
    """Send this client the events of a session, None for those of all sessions. Asked twice it is as asked once."""

    session: SessionName | None = None


class EventsMissed(EventBase):
    """Events for this client were dropped, of any session (`session` is empty): it did not read them for too
    long, or its line was lost for too long."""
