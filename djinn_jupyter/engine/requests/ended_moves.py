"""The end of a session's move between device and tiers, as its clients and its queued requests see it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from djinn_jupyter.engine.requests.answers import Answers
from djinn_jupyter.engine.requests.needs import lacks_bytes
from djinn_jupyter.engine.scheduling.waiting import Waiting
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Event, Failed, SessionSwapped

log = logging.getLogger(__name__)


class EndedMoves:
    def __init__(
        self,
        sessions: SessionTable,
        waiting: Waiting,
        answers: Answers,
        publish: Callable[[Event], None],
    ) -> None:
        self._sessions, self._waiting, self._answers, self._publish = sessions, waiting, answers, publish

    def ended(self, session: Session, transfer: Transfer | None) -> None:
        """Tell of a move. `transfer` is None where it failed; its error is in the session's residence."""
        self._sessions.touch(session.name)
        if transfer is not None:
            _log(session.name, transfer)
            self._publish(SessionSwapped(session=session.name, transfer=transfer))
            if session.residence.state == "disk":
                self._sessions.changed(session.name)  # the journal says from now on where its pages are
        if session.residence.error is not None:
            self._fail_waiting(session, session.residence.error)

    def _fail_waiting(self, session: Session, error: DjinnError) -> None:
        """Give the queued requests that needed the failed move its error, up to the first that did not."""
        while session in self._waiting and lacks_bytes(session, self._waiting.first(session).request):
            self._answers.add(self._waiting.take(session), Failed.of(error))


def _log(session: str, moved: Transfer) -> None:
    """Log the end of a move, in the words that the original's users look for."""
    if moved.direction == "out":
        line = "evicted: session %r, %d bytes to the %s in %.6f s (%s)"
    else:
        line = "restored: session %r, %d bytes from the %s in %.6f s (%s)"
    log.info(line, session, moved.bytes_moved, moved.tier, moved.seconds, moved.cause)
