"""The card of a stop on the page, which says so when its session has moved on or its value was edited, and while the
line to the engine is down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.engines import naming
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    from djinn_jupyter.client.connection.channel import Channel
    from djinn_jupyter.widgets.view import View
    from djinn_jupyter.wire.nouns import StopIdentity
    from djinn_jupyter.wire.replies import Event

MOVED, EDITED, CLOSED = "moved on since", "edited since", "closed since"
LINE_DOWN = "the line to the engine is down"
TOLD = {"SessionRunning": MOVED, "SessionClosed": CLOSED}


class StandingCard:
    """Listens to its session, moved by any client, until there is something to say; says it once. `stop` is the stop
    that the card was read from. It listens in the thread that receives messages."""

    def __init__(self, channel: Channel, handle: Any, view: View, stop: StopIdentity) -> None:
        self._handle, self._view, self._stop = handle, view, stop
        self._where = where(stop.session)
        self.said: str | None = None
        self._forget_line = channel.watch_line(self._heard_of_line)
        self._forget = channel.listen(stop.session, self._heard)

    def _heard(self, event: Event) -> None:
        words = self._words(event)
        if words is None or self.said is not None or self._view.since is None:
            return
        self.said = words
        self._handle.update(self._view.since(words if words == CLOSED else f"{words}: {self._where}"))
        self._forget()
        self._forget_line()

    def _heard_of_line(self, down_since: float | None) -> None:
        if self.said is not None or self._view.since is None:
            return
        if down_since is None:
            self._handle.update(self._view)
        else:
            at = time.strftime("%H:%M", time.localtime(down_since))
            self._handle.update(self._view.since(f"{LINE_DOWN} since {at}, shown as it was then"))

    def _words(self, event: Event) -> str | None:
        """Return the words of an event on the stop; events from before that stop may still come."""
        name = type(event).__name__
        if name in ("SessionPaused", "SessionEdited"):
            stop = event.stop  # type: ignore[attr-defined]
            if stop.number > self._stop.number:
                return MOVED
            return EDITED if stop.edition > self._stop.edition else None
        return TOLD.get(name)


def where(session: str | None) -> str:
    """Return the magic that draws where a session stands: the notebook's own needs no name."""
    if session is None or session == naming.notebook_path():
        return "%djinn_where"
    shown = label(session)
    return f"%djinn_where --session {in_quotes(shown) if ' ' in shown else shown}"
