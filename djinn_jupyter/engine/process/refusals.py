"""The messages that a service does not take: refused where they have a number that is still free, else dropped. Called
from the thread of the service.
"""

from __future__ import annotations

import logging
import time

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.process.pending import MOST_OF_PERSON
from djinn_jupyter.engine.process.sender import Sender
from djinn_jupyter.engine.process.unread import PERSON_BYTES
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.replies import Failed

log = logging.getLogger(__name__)

COMPLAINT_SECONDS = 1.0
NOT_TAKEN = (
    f"The engine does not take this request: {spell_bytes(PERSON_BYTES)} of replies to you wait to be read. Read them, "
    "and ask again."
)
MANY = (
    f"The engine does not take this request: {MOST_OF_PERSON:,} requests of yours wait for their answers. Wait for "
    "some, and ask again."
)
UNKNOWN = (
    "The engine does not know this client any more: it was started anew, or has let the client go (its key was "
    "revoked, or it was away for a day). Load it again, and look at your sessions before you go on."
)


class Refusals:
    """`refused` and `dropped` count what `ServiceStatistics` says."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.refused = self.dropped = 0
        self._complained = 0.0

    def refuse(self, client: bytes, number: int | None, error: DjinnError) -> None:
        """Answer a message with an error. One without a number, or with that of a request whose reply is still to come,
        is dropped, which is logged now and then."""
        if number is None or (client, number) in self._sender.pending:
            self.dropped += 1
            if time.monotonic() - self._complained > COMPLAINT_SECONDS:
                self._complained = time.monotonic()
                log.warning("Dropped a message, %d so far: %s", self.dropped, error)
            return
        self.refused += 1
        self._sender.send_reply(client, number, Failed.of(error))
